// Runs the fibers of cuda_emulation.h block by block, and what Python calls: `emulation_run`, `emulation_parameters`, `emulation_allocate`.
#pragma once

namespace emulation {

// Runs one fiber until it waits or ends.
static void resume(Thread& thread, size_t number) {
    machine.current = &thread;
    threadIdx = thread.index;
    switch (_setjmp(machine.scheduler)) {
    case 0:
        if (machine.current->begun) _longjmp(machine.current->point, 1);
        machine.current->begun = true;
        getcontext(&machine.current->start);
        machine.current->start.uc_stack.ss_sp = machine.stacks + number * STACK_BYTES + sysconf(_SC_PAGESIZE);
        machine.current->start.uc_stack.ss_size = STACK_BYTES - sysconf(_SC_PAGESIZE);
        machine.current->start.uc_link = nullptr;
        makecontext(&machine.current->start, fiber, 0);
        setcontext(&machine.current->start);
        break;
    case WAITED:
        return;
    }
    throw FAILED;
}

// Two threads that are not at the same place: the reason why a barrier is never complete.
static void describe_divergence(const Thread* waiting, const Thread* other) {
    char where[128];
    if (other->state == State::ENDED) snprintf(where, sizeof where, "has ended");
    else snprintf(where, sizeof where, "waits at %s in line %d", other->function, other->line);
    machine.current = const_cast<Thread*>(waiting);
    snprintf(machine.message, machine.message_bytes,
             "thread (%u, %u, %u) of block (%u, %u, %u) waits at %s in line %d for thread (%u, %u, %u), which %s",
             waiting->index.x, waiting->index.y, waiting->index.z, blockIdx.x, blockIdx.y, blockIdx.z, waiting->function,
             waiting->line, other->index.x, other->index.y, other->index.z, where);
    throw FAILED;
}

static bool together(const Thread& a, const Thread& b) {
    return a.state == b.state && (a.state == State::ENDED || (a.function == b.function && a.line == b.line));
}

// Runs a warp until all its lanes have ended or wait for the rest of the block; true when any of them ran.
static bool run_warp(size_t first, size_t end, const std::vector<unsigned>& lanes) {
    bool ran = false;
    for (;;) {
        for (unsigned lane : lanes) {
            const size_t number = first + lane;
            if (number < end && machine.threads[number].state == State::READY) {
                ran = true;
                resume(machine.threads[number], number);
            }
        }
        Thread* warp = &machine.threads[first];
        const size_t count = end - first;
        const Thread* waiting = nullptr;
        for (size_t i = 0; i < count && !waiting; ++i)
            if (warp[i].state == State::AT_WARP_FUNCTION) waiting = &warp[i];
        if (!waiting) return ran;
        for (size_t i = 0; i < count; ++i)
            if (!together(*waiting, warp[i])) describe_divergence(waiting, &warp[i]);
        if (count < LANES) {
            machine.current = warp;
            snprintf(machine.message, machine.message_bytes, "%s in line %d: the last warp has only %zu threads, expected 32",
                     warp->function, warp->line, count);
            throw FAILED;
        }
        Warp exchanged;
        for (size_t i = 0; i < count; ++i) {
            exchanged.in[i] = warp[i].in;
            exchanged.out[i] = warp[i].out;
            warp[i].state = State::READY;
        }
        warp->combine(exchanged);
    }
}

static void run_block(const std::vector<unsigned>& warps, const std::vector<unsigned>& lanes) {
    std::vector<Thread>& threads = machine.threads;
    if (__start_emulated_shared) memset(__start_emulated_shared, POISON, __stop_emulated_shared - __start_emulated_shared);
    memset(machine.dynamic_shared, POISON, machine.shared_bytes);
    for (Thread& thread : threads) {
        thread.state = State::READY;
        thread.group = 0;
    }
    for (;;) {
        bool ran = false;
        for (unsigned warp : warps) {
            const size_t first = size_t(warp) * LANES;
            ran |= run_warp(first, std::min(first + LANES, threads.size()), lanes);
        }
        const Thread* waiting = nullptr;
        for (const Thread& thread : threads)
            if (thread.state == State::AT_BLOCK_BARRIER && !waiting) waiting = &thread;
        if (!waiting) return;
        for (Thread& thread : threads)
            if (!together(*waiting, thread)) describe_divergence(waiting, &thread);
        for (Thread& thread : threads) thread.state = State::READY;
    }
}

// 0, 1, 2, ... for the seed 0, else a permutation drawn from it.
static std::vector<unsigned> order(size_t count, unsigned seed) {
    std::vector<unsigned> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0u);
    unsigned state = seed * 0x9e3779b9u;  // small seeds differ in their high bits too
    for (size_t i = count; seed && i > 1; --i) {
        state = state * 1664525u + 1013904223u;  // linear congruential generator, Numerical Recipes
        std::swap(numbers[i - 1], numbers[(state >> 8) % i]);
    }
    return numbers;
}

// Fibers of a block of this size. A fiber is kept from block to block; after a failure all are created again.
static void make_threads(dim3 block) {
    const size_t count = size_t(block.x) * block.y * block.z, page = sysconf(_SC_PAGESIZE);
    machine.threads.assign(count, Thread());
    machine.stacks = static_cast<unsigned char*>(
        mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (size_t i = 0; i < count; ++i) {
        mprotect(machine.stacks + i * STACK_BYTES, page, PROT_NONE);
        machine.threads[i].index = {unsigned(i % block.x), unsigned(i / block.x % block.y), unsigned(i / block.x / block.y)};
    }
}

// A page that cannot be touched was: past an array, or past a fiber's stack.
static void on_fault(int signal, siginfo_t* info, void*) {
    if (!pthread_equal(machine.runner, pthread_self())) {  // not ours: let it happen again without us
        struct sigaction standard = {};
        standard.sa_handler = SIG_DFL;
        sigaction(signal, &standard, nullptr);
        return;
    }
    const long page = sysconf(_SC_PAGESIZE);
    const long offset = static_cast<char*>(info->si_addr) - static_cast<char*>(machine.dynamic_shared);
    if (offset >= -page && offset < long(machine.shared_bytes) + page)
        fail("touches byte %ld of its %zu bytes of dynamic shared memory", offset, machine.shared_bytes);
    fail("touches the address %p", info->si_addr);
}

struct FaultHandler {
    struct sigaction old_segv, old_bus;
    stack_t old_stack;
    std::vector<unsigned char> stack = std::vector<unsigned char>(64 << 10);
    FaultHandler() {
        machine.runner = pthread_self();
        stack_t alternate = {};
        alternate.ss_sp = stack.data();
        alternate.ss_size = stack.size();
        sigaltstack(&alternate, &old_stack);
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, &old_segv);
        sigaction(SIGBUS, &action, &old_bus);
    }
    ~FaultHandler() {
        sigaction(SIGSEGV, &old_segv, nullptr);
        sigaction(SIGBUS, &old_bus, nullptr);
        sigaltstack(&old_stack, nullptr);
    }
};

template <class... Arguments, size_t... I>
void invoke_with(void (*kernel)(Arguments...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<Arguments>*>(arguments[I])...);
}
template <class... Arguments>
void invoke_kernel(void (*kernel)(Arguments...), void** arguments) {
    invoke_with(kernel, arguments, std::index_sequence_for<Arguments...>());
}
template <class... Arguments>
constexpr int parameter_count(void (*)(Arguments...)) { return sizeof...(Arguments); }

struct Kernel {
    const char* name;
    int parameters;
    void (*invoke)(void** arguments);
};

}  // namespace emulation

#define EMULATED_KERNEL(name) \
    emulation::Kernel { #name, emulation::parameter_count(name), [](void** values) { emulation::invoke_kernel(name, values); } }

// The kernels of this library, written by the driver after including kernel.cu; the last one is {}.
namespace emulation {
extern const Kernel KERNELS[];
}

// Memory that ends at a page that cannot be touched; what the end's alignment leaves free holds POISON.
extern "C" void* emulation_allocate(size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), used = (bytes + page - 1) / page * page;
    auto* pages = static_cast<unsigned char*>(
        mmap(nullptr, used + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (pages == MAP_FAILED) return nullptr;
    if (used) mprotect(pages + page, used, PROT_READ | PROT_WRITE);
    memset(pages + page, emulation::POISON, used);
    return pages + page + (used - bytes) / emulation::GLOBAL_ALIGNMENT * emulation::GLOBAL_ALIGNMENT;
}

// Releases it; false where the bytes around it were written to.
extern "C" bool emulation_release(void* memory, size_t bytes) {
    const size_t page = sysconf(_SC_PAGESIZE), used = (bytes + page - 1) / page * page;
    auto* data = static_cast<unsigned char*>(memory);
    unsigned char* pages = data - (used - bytes) / emulation::GLOBAL_ALIGNMENT * emulation::GLOBAL_ALIGNMENT - page;
    bool untouched = true;
    for (unsigned char* byte = pages + page; byte < pages + page + used; ++byte)
        untouched &= (byte >= data && byte < data + bytes) || *byte == emulation::POISON;
    munmap(pages, used + 2 * page);
    return untouched;
}

// The number of parameters of a kernel; -1 without one of this name.
extern "C" int emulation_parameters(const char* name) {
    const emulation::Kernel* kernel = emulation::KERNELS;
    while (kernel->name && strcmp(kernel->name, name)) ++kernel;
    return kernel->name ? kernel->parameters : -1;
}

// Runs a kernel; 0, or 1 with `message` filled. `arguments` points to the values, as for cuLaunchKernel.
extern "C" int emulation_run(const char* name, const unsigned grid[3], const unsigned block[3], size_t shared_bytes,
                             void** arguments, int argument_count, unsigned seed, char* message, size_t message_bytes) {
    using namespace emulation;
    const Kernel* kernel = KERNELS;
    while (kernel->name && strcmp(kernel->name, name)) ++kernel;
    if (!kernel->name) {
        snprintf(message, message_bytes, "no kernel of this name");
        return 1;
    }
    if (kernel->parameters != argument_count) {
        snprintf(message, message_bytes, "has %d parameters, got %d arguments", kernel->parameters, argument_count);
        return 1;
    }
    machine.invoke = kernel->invoke;
    machine.arguments = arguments;
    machine.message = message;
    machine.message_bytes = message_bytes;
    machine.dynamic_shared = emulation_allocate(shared_bytes);
    machine.shared_bytes = shared_bytes;
    blockDim = {block[0], block[1], block[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    make_threads(blockDim);
    const std::vector<unsigned> warps = order((machine.threads.size() + LANES - 1) / LANES, seed);
    const std::vector<unsigned> lanes = order(LANES, seed);
    int failed = 0;
    try {
        FaultHandler handler;
        const unsigned long long blocks = 1ull * grid[0] * grid[1] * grid[2];
        for (unsigned long long i = 0; i < blocks; ++i) {
            const unsigned long long number = seed ? blocks - 1 - i : i;
            blockIdx = {unsigned(number % grid[0]), unsigned(number / grid[0] % grid[1]), unsigned(number / grid[0] / grid[1])};
            run_block(warps, lanes);
        }
    } catch (Outcome) {
        failed = 1;
    }
    munmap(machine.stacks, machine.threads.size() * STACK_BYTES);
    if (!emulation_release(machine.dynamic_shared, shared_bytes) && !failed) {
        snprintf(message, message_bytes, "writes outside of its dynamic shared memory");
        failed = 1;
    }
    return failed;
}
