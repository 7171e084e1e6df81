// What g++ calls where -fsanitize finds an error: the handlers of libubsan, ending the run instead of printing.
// Their names, and that their first argument begins with {file, line, column}, are the compiler's interface.
#pragma once

namespace emulation {
struct Place {
    const char* file;
    unsigned line, column;
};
[[noreturn]] static void report(const void* place, const char* what) {
    const Place& at = *static_cast<const Place*>(place);
    const char* name = strrchr(at.file, '/');
    fail("%s at %s:%u", what, name ? name + 1 : at.file, at.line);
}
}  // namespace emulation

#define EMULATED_HANDLER(name, what, ...) \
    extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_##name(void* place __VA_ARGS__) { \
        emulation::report(place, what); \
    }
EMULATED_HANDLER(out_of_bounds, "indexes outside of an array", , void*)
EMULATED_HANDLER(add_overflow, "overflows a signed integer (+)", , void*, void*)
EMULATED_HANDLER(sub_overflow, "overflows a signed integer (-)", , void*, void*)
EMULATED_HANDLER(mul_overflow, "overflows a signed integer (*)", , void*, void*)
EMULATED_HANDLER(negate_overflow, "overflows a signed integer (unary -)", , void*)
EMULATED_HANDLER(divrem_overflow, "divides by zero or overflows in a division", , void*, void*)
EMULATED_HANDLER(shift_out_of_bounds, "shifts by too many bits", , void*, void*)
EMULATED_HANDLER(load_invalid_value, "reads a bool that is neither 0 nor 1", , void*)
EMULATED_HANDLER(type_mismatch_v1, "reads or writes a misaligned address", , void*)
