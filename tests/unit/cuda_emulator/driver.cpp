// A CUDA driver without a GPU: the calls that the measuring code makes, with kernels run by the emulator.
//
// Loaded in place of libcuda.so.1, so that the Python side runs unchanged: its argument packing, launch shapes, stream
// capture, events and copies. Device memory is host memory between guard zones, poisoned with 0xff (NaN in float and
// bfloat16); a kernel that writes outside its allocations is reported when they are freed. Work runs at once, in order;
// between begin and end of a capture it is only recorded. Events read the host's clock.
#include "emulator.hpp"

#include <dlfcn.h>

#include <chrono>
#include <map>
#include <tuple>

#include "kernels.inc"

namespace {

using Result = int;
constexpr Result SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719;
constexpr size_t GUARD = 4096;
constexpr unsigned char GUARD_BYTE = 0xa5;

template <typename... Arguments>
std::function<void()> bound(void (*kernel)(Arguments...), void** values) {
    int i = 0;
    // Braces make the order of evaluation left to right.
    std::tuple<Arguments...> held{*static_cast<Arguments*>(values[i++])...};
    return [kernel, held] { std::apply(kernel, held); };
}

using Binder = std::function<std::function<void()>(void**)>;
#define KERNEL(name) {#name, [](void** values) { return bound(name, values); }}
const std::map<std::string, Binder> kernels = {KERNELS};

struct Launch {
    Index grid, block;
    std::function<void()> call;
};
struct Graph {
    std::vector<std::function<Result()>> work;
};
struct Event {
    std::chrono::steady_clock::time_point time;
};

std::map<uintptr_t, size_t> allocations;
Graph* capturing = nullptr;

Result run(std::function<Result()> work) {
    if (capturing) {
        capturing->work.push_back(std::move(work));
        return SUCCESS;
    }
    return work();
}

bool guards_intact(uintptr_t at, size_t size) {
    const unsigned char* bytes = reinterpret_cast<unsigned char*>(at);
    for (size_t i = 0; i < GUARD; ++i)
        if (bytes[-static_cast<long>(i) - 1] != GUARD_BYTE || bytes[size + i] != GUARD_BYTE) return false;
    return true;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
Result cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
Result cuDeviceGet(int* device, int) { return *device = 0, SUCCESS; }
Result cuDeviceGetName(char* name, int size, int) { return std::snprintf(name, size, "Emulated H100 80GB HBM3"), SUCCESS; }
Result cuDeviceTotalMem(size_t* size, int) { return *size = size_t(1) << 28, SUCCESS; }
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    const std::map<int, int> known = {{16, 4}, {38, 1 << 16}, {75, 9}, {76, 0}, {32, 0}};
    const auto found = known.find(attribute);
    return *value = found == known.end() ? 0 : found->second, SUCCESS;
}
Result cuDevicePrimaryCtxRetain(void** context, int) { return *context = &allocations, SUCCESS; }
Result cuDevicePrimaryCtxRelease(int) { return SUCCESS; }
Result cuCtxSetCurrent(void*) { return SUCCESS; }
Result cuCtxSynchronize() { return SUCCESS; }

Result cuMemAlloc(uintptr_t* at, size_t size) {
    unsigned char* raw = static_cast<unsigned char*>(std::aligned_alloc(GUARD, (size + 3 * GUARD - 1) / GUARD * GUARD));
    if (!raw) return OUT_OF_MEMORY;
    std::memset(raw, GUARD_BYTE, size + 2 * GUARD);
    std::memset(raw + GUARD, 0xff, size);
    *at = reinterpret_cast<uintptr_t>(raw + GUARD);
    allocations[*at] = size;
    return SUCCESS;
}
Result cuMemFree(uintptr_t at) {
    const auto found = allocations.find(at);
    if (found == allocations.end()) return INVALID_VALUE;
    const bool intact = guards_intact(at, found->second);
    std::free(reinterpret_cast<unsigned char*>(at) - GUARD);
    allocations.erase(found);
    return intact ? SUCCESS : LAUNCH_FAILED;
}
Result cuMemGetInfo(size_t* free, size_t* total) { return *free = size_t(1) << 25, *total = size_t(1) << 28, SUCCESS; }
Result cuMemHostAlloc(void** at, size_t size, unsigned) { return *at = std::malloc(size), SUCCESS; }
Result cuMemFreeHost(void* at) { return std::free(at), SUCCESS; }

static Result copy(void* to, const void* from, size_t size) {
    return run([=] { return std::memcpy(to, from, size), SUCCESS; });
}
Result cuMemcpyHtoD(uintptr_t to, const void* from, size_t size) { return copy((void*)to, from, size); }
Result cuMemcpyDtoH(void* to, uintptr_t from, size_t size) { return copy(to, (void*)from, size); }
Result cuMemcpyHtoDAsync(uintptr_t to, const void* from, size_t size, void*) { return copy((void*)to, from, size); }
Result cuMemcpyDtoHAsync(void* to, uintptr_t from, size_t size, void*) { return copy(to, (void*)from, size); }
Result cuMemcpyDtoDAsync(uintptr_t to, uintptr_t from, size_t size, void*) { return copy((void*)to, (void*)from, size); }
Result cuMemsetD8Async(uintptr_t at, unsigned char value, size_t size, void*) {
    return run([=] { return std::memset((void*)at, value, size), SUCCESS; });
}

Result cuModuleLoadData(void** module, const void* image) {
    return *module = const_cast<void*>(image), std::memcmp(image, "\x7f" "ELF", 4) == 0 ? SUCCESS : INVALID_VALUE;
}
Result cuModuleGetFunction(const Binder** function, void*, const char* name) {
    const auto found = kernels.find(name);
    if (found == kernels.end()) return NOT_FOUND;
    return *function = &found->second, SUCCESS;
}
Result cuLaunchKernel(const Binder* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned, void*, void** values, void**) {
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz == 0 || bx * by * bz > 1024) return INVALID_VALUE;
    const std::function<void()> call = (*function)(values);
    return run([=] {
        if (emulator::launch({gx, gy, gz}, {bx, by, bz}, call)) return SUCCESS;
        std::fprintf(stderr, "emulator: %s\n", emulator::complaint.c_str());
        return LAUNCH_FAILED;
    });
}

Result cuStreamCreate(void** stream, unsigned) { return *stream = &capturing, SUCCESS; }
Result cuStreamDestroy(void*) { return SUCCESS; }
Result cuStreamSynchronize(void*) { return capturing ? INVALID_VALUE : SUCCESS; }
Result cuStreamBeginCapture(void*, int) {
    if (capturing) return INVALID_VALUE;
    return capturing = new Graph, SUCCESS;
}
Result cuStreamEndCapture(void*, Graph** graph) {
    if (!capturing) return INVALID_VALUE;
    *graph = capturing;
    return capturing = nullptr, SUCCESS;
}
Result cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    return *executable = new Graph(*graph), SUCCESS;
}
Result cuGraphInstantiate(Graph** executable, Graph* graph, unsigned long long) {
    return *executable = new Graph(*graph), SUCCESS;
}
Result cuGraphLaunch(Graph* graph, void*) {
    for (const auto& work : graph->work)
        if (const Result result = work()) return result;
    return SUCCESS;
}
Result cuGraphExecDestroy(Graph* graph) { return delete graph, SUCCESS; }
Result cuGraphDestroy(Graph* graph) { return delete graph, SUCCESS; }

Result cuEventCreate(Event** event, unsigned) { return *event = new Event, SUCCESS; }
Result cuEventRecord(Event* event, void*) { return event->time = std::chrono::steady_clock::now(), SUCCESS; }
Result cuEventSynchronize(Event*) { return SUCCESS; }
Result cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    return SUCCESS;
}
Result cuEventDestroy(Event* event) { return delete event, SUCCESS; }

Result cuGetErrorName(Result code, const char** text) {
    return *text = code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OTHER", SUCCESS;
}

// The compiler looks for private tables of a driver that it finds: there are none (a table is as long as its first word).
Result cuGetExportTable(const void** table, const void*) {
    static const size_t nothing[] = {sizeof(size_t)};
    return *table = nothing, SUCCESS;
}

// How the bindings find every call; what is not here is reported as missing when it is called.
Result cuGetProcAddress_v2(const char* symbol, void** found, int, uint64_t, int* status) {
    Dl_info self;
    dladdr(reinterpret_cast<void*>(&cuInit), &self);
    void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *found = dlsym(library, symbol);
    if (status) *status = *found ? 0 : 1;
    return *found ? SUCCESS : NOT_FOUND;
}
}
