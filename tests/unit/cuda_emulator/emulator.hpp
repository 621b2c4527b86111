// Runs CUDA device code on the CPU: one fiber per CUDA thread, so that barriers and warp exchanges have their meaning.
//
// What is kept: thread and block indices, shared memory of a block, __syncthreads, __shfl_xor_sync, the warp product of
// tensor cores. Blocks run one after another. A barrier that some thread of a block never reaches is reported. Between
// two barriers the threads run in index order, or in reverse (EMULATOR_ORDER=reverse): code with a missing barrier
// answers differently in the two. Not kept: time, memory consistency, caches.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define SERVESIM_EMULATED
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

struct Index {
    unsigned int x, y, z;
};
inline Index gridDim, blockDim, blockIdx;

namespace emulator {

constexpr int WARP = 32;
constexpr size_t STACK = 64 * 1024;
enum class State { ready, at_block_barrier, at_warp_barrier, done };

// A fiber starts by `setcontext`; afterwards switches are jumps, which need no system call.
struct Fiber {
    ucontext_t context;
    jmp_buf resume;
    bool started = false;
    std::vector<char> stack = std::vector<char>(STACK);
    State state = State::ready;
    Index thread{};
};

struct WarpSlot {
    uint32_t words[8];
};

inline jmp_buf scheduler;
inline std::vector<Fiber> fibers;
inline std::vector<WarpSlot> slots;
inline int running = 0;
inline const std::function<void()>* body = nullptr;
inline std::string complaint;

inline void entry() {
    (*body)();
    fibers[running].state = State::done;
    _longjmp(scheduler, 1);
}

inline void wait(State state) {
    fibers[running].state = state;
    if (!_setjmp(fibers[running].resume)) _longjmp(scheduler, 1);
}

// Run one fiber to its next barrier or its end.
inline void step() {
    Fiber& fiber = fibers[running];
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}

// Let go the threads [first, last) if each of those that are left waits at the same kind of barrier.
inline bool release(int first, int last, State barrier) {
    int waiting = 0;
    for (int i = first; i < last; ++i) {
        if (fibers[i].state == State::done && barrier == State::at_block_barrier) continue;
        if (fibers[i].state != barrier) return false;
        ++waiting;
    }
    for (int i = first; i < last; ++i)
        if (fibers[i].state == barrier) fibers[i].state = State::ready;
    return waiting > 0;
}

inline bool release_any(int count) {
    bool any = false;
    for (int warp = 0; warp < count; warp += WARP)
        any |= release(warp, std::min(warp + WARP, count), State::at_warp_barrier);
    return any || release(0, count, State::at_block_barrier);
}

inline void run_block(int count) {
    const char* order = std::getenv("EMULATOR_ORDER");
    const bool reverse = order && std::string(order) == "reverse";
    for (int i = 0; i < count; ++i) {
        Fiber& fiber = fibers[i];
        fiber.state = State::ready;
        fiber.started = false;
        fiber.thread = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, entry, 0);
    }
    for (;;) {
        bool left = false;
        for (int i = 0; i < count; ++i) {
            running = reverse ? count - 1 - i : i;
            if (fibers[running].state == State::ready) step();
        }
        for (int i = 0; i < count; ++i) left |= fibers[i].state != State::done;
        if (!left) return;
        if (!release_any(count)) {
            complaint = "threads of block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
                        std::to_string(blockIdx.z) + ") wait at different barriers";
            return;
        }
    }
}

// The whole grid; false (and `complaint`) when a barrier is not reached by all.
inline bool launch(Index grid, Index block, const std::function<void()>& kernel) {
    const int count = static_cast<int>(block.x * block.y * block.z);
    if (static_cast<int>(fibers.size()) < count) fibers.resize(count);
    slots.assign(count, WarpSlot{});
    gridDim = grid;
    blockDim = block;
    body = &kernel;
    complaint.clear();
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                run_block(count);
                if (!complaint.empty()) return false;
            }
    return true;
}

}  // namespace emulator

#define threadIdx (emulator::fibers[emulator::running].thread)

inline void __syncthreads() { emulator::wait(emulator::State::at_block_barrier); }

inline float __uint_as_float(unsigned int bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline unsigned int __float_as_uint(float value) {
    unsigned int bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline float __expf(float value) { return std::exp(value); }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline float __shfl_xor_sync(unsigned int, float value, int mask) {
    using namespace emulator;
    const int me = running;
    slots[me].words[0] = __float_as_uint(value);
    wait(State::at_warp_barrier);
    const float other = __uint_as_float(slots[me ^ mask].words[0]);
    wait(State::at_warp_barrier);
    return other;
}

inline void mma_16x8x16(float (&d)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    using namespace emulator;
    const int me = running, first = me / WARP * WARP, lane = me % WARP;
    std::memcpy(slots[me].words, a, sizeof a);
    std::memcpy(slots[me].words + 4, b, sizeof b);
    wait(State::at_warp_barrier);
    const auto half = [](uint32_t word, int k) { return __uint_as_float(k % 2 ? word & 0xffff0000u : word << 16); };
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const WarpSlot& left = slots[first + row % 8 * 4 + k % 8 / 2];
            const WarpSlot& right = slots[first + column * 4 + k % 8 / 2];
            d[i] += half(left.words[row / 8 + k / 8 * 2], k) * half(right.words[4 + k / 8], k);
        }
    }
    wait(State::at_warp_barrier);
}
