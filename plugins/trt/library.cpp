// The library of TensorRT plugins: what TensorRT calls when it loads it, as `trtexec --dynamicPlugins` makes it do.

#include <cstdio>
#include <exception>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "plugins/trt/kernel_plugin.h"

#define INTAGLIO_EXPORT extern "C" __attribute__((visibility("default")))

namespace intaglio::trt {
namespace {

using namespace nvinfer1;

ILoggerFinder* logger_finder = nullptr;

// Errors for a program that asks for them, and so has them neither in a log nor on standard error.
struct Errors {
    std::mutex mutex;
    bool asked_for = false;
    std::string lines;
};
Errors& errors() {
    static auto* const kept = new Errors();
    return *kept;
}
constexpr size_t MOST_BYTES = 1 << 14;  // of lines; a program may ask late

class KernelCreator final : public v_1_0::IPluginCreatorV3One {
public:
    KernelCreator() {
        for (size_t i = 0; i < std::size(FIELDS); ++i) fields_[i] = {FIELDS[i], nullptr, PluginFieldType::kCHAR, 0};
    }
    v_1_0::IPluginV3* createPlugin(const char* name, const PluginFieldCollection* fields, TensorRTPhase) noexcept override {
        try {
            return new KernelPlugin(*fields);
        } catch (const std::exception& error) {
            report(std::string(name) + ": " + error.what());
            return nullptr;
        }
    }
    const PluginFieldCollection* getFieldNames() noexcept override { return &collection_; }
    const char* getPluginName() const noexcept override { return NAME; }
    const char* getPluginVersion() const noexcept override { return VERSION; }
    const char* getPluginNamespace() const noexcept override { return NAMESPACE; }

private:
    PluginField fields_[std::size(FIELDS)];
    PluginFieldCollection collection_{int32_t(std::size(FIELDS)), fields_};
};

}  // namespace

void report(const std::string& message) noexcept {
    {
        const std::lock_guard<std::mutex> lock(errors().mutex);
        if (errors().asked_for) {
            if (errors().lines.size() < MOST_BYTES) errors().lines += message + "\n";
            return;
        }
    }
    const std::string line = "intaglio: " + message;
    ILogger* const logger = logger_finder != nullptr ? logger_finder->findLogger() : nullptr;
    if (logger != nullptr) {
        logger->log(ILogger::Severity::kERROR, line.c_str());
    } else {
        std::fprintf(stderr, "%s\n", line.c_str());
    }
}

}  // namespace intaglio::trt

// The errors since the last call, a line each; they come here from the first call on.
INTAGLIO_EXPORT const char* intaglio_plugin_errors() {
    static thread_local std::string last;  // for the caller to copy
    auto& kept = intaglio::trt::errors();
    const std::lock_guard<std::mutex> lock(kept.mutex);
    kept.asked_for = true;
    last = std::move(kept.lines);
    kept.lines.clear();
    return last.c_str();
}

INTAGLIO_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) { intaglio::trt::logger_finder = finder; }

INTAGLIO_EXPORT nvinfer1::v_1_0::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    static intaglio::trt::KernelCreator creator;
    static nvinfer1::v_1_0::IPluginCreatorInterface* const creators[] = {&creator};
    count = 1;
    return creators;
}
