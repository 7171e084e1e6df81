// Runs a CUDA kernel on the CPU: what `kernel.cu` uses of CUDA, for g++, with every rule checked that can be.
//
// A thread of a block is a fiber; a block runs on one thread of the CPU, blocks one after the other. A fiber runs
// until it waits (at a barrier, or at a function of the whole warp) or ends. What a GPU would let pass in silence
// ends the run with a message: a barrier that some threads do not reach, an index outside of an array in shared
// memory, an access outside of the arrays in global memory, a misaligned vector, an overflow of a signed integer.
//
// - `__shared__` arrays are filled with POISON at the start of each block. They stand in the kernel itself or in an
//   anonymous namespace's function. Dynamic shared memory is `INTAGLIO_DYNAMIC_SHARED(type, name)`.
// - Functions of a warp take the full mask, so a block that uses them has a multiple of 32 threads.
// - Warps and their lanes run in an order drawn from a seed, so that a missing barrier shows.
// - Arrays in global memory come from `emulation_allocate`, which ends them at a page that cannot be touched.
#pragma once

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("emulated_shared")))
#define INTAGLIO_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(emulation::machine.dynamic_shared)

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

// The bounds of `emulated_shared`, made by the linker; absent where a kernel has no such array.
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_emulated_shared[], __stop_emulated_shared[];

namespace emulation {

constexpr int LANES = 32;
constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t GLOBAL_ALIGNMENT = 16;
constexpr unsigned char POISON = 0xA5;

enum class State { READY, AT_BLOCK_BARRIER, AT_WARP_FUNCTION, ENDED };

// What the 32 lanes hand to a function of the warp, and where each takes its result.
struct Warp {
    const void* in[LANES];
    void* out[LANES];
};
using Combine = void (*)(const Warp&);

struct AsyncCopy {
    void* to;
    const void* from;  // nullptr: zeros
    unsigned bytes, group;
};

struct Thread {
    uint3 index;
    State state;
    const char* function;  // what it waits at
    int line;
    const void* in;
    void* out;
    Combine combine;
    std::vector<AsyncCopy> copies;
    unsigned group;  // of the asynchronous copies begun now
    bool begun;
    jmp_buf point;
    ucontext_t start;
};

enum Outcome { WAITED = 1, FAILED = 2 };

struct Machine {
    std::vector<Thread> threads;
    Thread* current = nullptr;
    void (*invoke)(void** arguments) = nullptr;
    void** arguments = nullptr;
    void* dynamic_shared = nullptr;
    size_t shared_bytes = 0;
    unsigned char* stacks = nullptr;
    jmp_buf scheduler;
    ucontext_t unused;
    pthread_t runner;
    char* message = nullptr;
    size_t message_bytes = 0;
};
static Machine machine;

// Ends the run from within a fiber; the message says which thread, and why.
[[noreturn]] __attribute__((format(printf, 1, 2), noinline)) static void fail(const char* format, ...) {
    const uint3 thread = machine.current->index;
    int written = snprintf(machine.message, machine.message_bytes, "thread (%u, %u, %u) of block (%u, %u, %u) ", thread.x,
                           thread.y, thread.z, blockIdx.x, blockIdx.y, blockIdx.z);
    va_list list;
    va_start(list, format);
    vsnprintf(machine.message + written, machine.message_bytes - written, format, list);
    va_end(list);
    _longjmp(machine.scheduler, FAILED);
}

// `_setjmp` and `_longjmp` leave the signal mask alone: no system call in a switch.
__attribute__((noinline)) static void back_to_scheduler() {
    if (_setjmp(machine.current->point) == 0) _longjmp(machine.scheduler, WAITED);
}

static void fiber() {
    for (;;) {
        machine.invoke(machine.arguments);
        if (!machine.current->copies.empty()) fail("ended with asynchronous copies that it never waited for");
        machine.current->state = State::ENDED;
        back_to_scheduler();
    }
}

__attribute__((noinline)) static void wait(State state, const char* function, int line) {
    Thread& self = *machine.current;
    self.state = state;
    self.function = function;
    self.line = line;
    back_to_scheduler();
}

// A function of the whole warp: every lane hands in `in`; when all have, `combine` writes every lane's result.
template <class Out, class In>
Out warp_function(const char* function, int line, const In& in, Combine combine) {
    Out out;
    machine.current->in = &in;
    machine.current->out = &out;
    machine.current->combine = combine;
    wait(State::AT_WARP_FUNCTION, function, line);
    return out;
}

template <class T>
struct Shuffle {
    T value;
    int lane;
};

template <class T>
T shuffle(const char* function, int line, unsigned mask, T value, int lane) {
    if (mask != 0xffffffffu) fail("calls %s in line %d with the mask %08x, expected all 32 lanes", function, line, mask);
    return warp_function<T>(function, line, Shuffle<T>{value, lane}, [](const Warp& warp) {
        for (int lane = 0; lane < LANES; ++lane) {
            const int from = static_cast<const Shuffle<T>*>(warp.in[lane])->lane & (LANES - 1);
            *static_cast<T*>(warp.out[lane]) = static_cast<const Shuffle<T>*>(warp.in[from])->value;
        }
    });
}

static inline unsigned ballot(const char* function, int line, unsigned mask, bool vote) {
    if (mask != 0xffffffffu) fail("calls %s in line %d with the mask %08x, expected all 32 lanes", function, line, mask);
    return warp_function<unsigned>(function, line, vote, [](const Warp& warp) {
        unsigned votes = 0;
        for (int lane = 0; lane < LANES; ++lane) votes |= unsigned(*static_cast<const bool*>(warp.in[lane])) << lane;
        for (int lane = 0; lane < LANES; ++lane) *static_cast<unsigned*>(warp.out[lane]) = votes;
    });
}

static inline int this_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % LANES;
}

// An asynchronous copy to shared memory: POISON from its beginning until its group is waited for.
static inline void begin_copy(void* to, const void* from, unsigned bytes) {
    if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
        fail("copies %u bytes asynchronously from or to a misaligned address", bytes);
    memset(to, POISON, bytes);
    machine.current->copies.push_back({to, from, bytes, machine.current->group});
}

static inline void commit_copies() { ++machine.current->group; }

// Waits for all but the `pending` groups committed last.
static inline void wait_for_copies(unsigned pending) {
    Thread& self = *machine.current;
    size_t done = 0;
    for (; done < self.copies.size() && self.copies[done].group + pending < self.group; ++done) {
        const AsyncCopy& copy = self.copies[done];
        if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
        else memset(copy.to, 0, copy.bytes);
    }
    self.copies.erase(self.copies.begin(), self.copies.begin() + done);
}

}  // namespace emulation

static inline void __syncthreads(int line = __builtin_LINE()) {
    emulation::wait(emulation::State::AT_BLOCK_BARRIER, "__syncthreads", line);
}
static inline void __syncwarp(int line = __builtin_LINE()) {
    emulation::ballot("__syncwarp", line, 0xffffffffu, true);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int line = __builtin_LINE()) {
    return emulation::shuffle("__shfl_sync", line, mask, value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int line = __builtin_LINE()) {
    return emulation::shuffle("__shfl_xor_sync", line, mask, value, emulation::this_lane() ^ bits);
}
// Past the last lane a lane keeps its own value.
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int line = __builtin_LINE()) {
    const int lane = emulation::this_lane(), from = lane + int(delta);
    return emulation::shuffle("__shfl_down_sync", line, mask, value, from < emulation::LANES ? from : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
    return emulation::ballot("__ballot_sync", line, mask, vote != 0);
}
static inline int __any_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
    return emulation::ballot("__any_sync", line, mask, vote != 0) != 0;
}
static inline int __all_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
    return emulation::ballot("__all_sync", line, mask, vote != 0) == 0xffffffffu;
}

// One thread runs at a time, so that plain reads and writes are atomic.
template <class T>
T atomicAdd(T* address, T value) { return std::exchange(*address, *address + value); }
template <class T>
T atomicMax(T* address, T value) { return std::exchange(*address, value > *address ? value : *address); }
template <class T>
T atomicMin(T* address, T value) { return std::exchange(*address, value < *address ? value : *address); }

template <class T>
T min(T a, T b) { return b < a ? b : a; }
template <class T>
T max(T a, T b) { return a < b ? b : a; }
template <class T>
T __ldg(const T* address) { return *address; }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __mulhi(int a, int b) { return int((static_cast<long long>(a) * b) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((static_cast<unsigned long long>(a) * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
static inline float __int_as_float(int bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
static inline int __float_as_int(float value) {
    int bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}
// The four bytes that the nibbles of `selector` name among the eight of `high:low`.
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long bytes = (static_cast<unsigned long long>(high) << 32) | low;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned((bytes >> (8 * ((selector >> (4 * i)) & 7))) & 0xff) << (8 * i);
    return result;
}

#include "scheduler.h"
#include "sanitizer.h"
