// What goes wrong in a library of ours, on its way to who called it. The message is one line: what, got, expected.
#pragma once

#include <stdexcept>

namespace intaglio {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace intaglio
