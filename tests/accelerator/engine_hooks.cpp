// What torch's C++ side asks of a device: a guard (current device, current stream, events) and hooks (pinned memory).
// Device and stream are per thread, as CUDA's; streams and events themselves live in Python and are called back.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <set>

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

namespace {

constexpr DeviceType kType = DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;

struct Callbacks {
  int64_t (*record)(int64_t device, int64_t stream);
  void (*block)(int64_t event, int64_t device, int64_t stream);
  void (*destroy)(int64_t event);
  int64_t (*query)(int64_t event);
  void (*synchronize)(int64_t event);
  int64_t (*new_stream)(int64_t device, int64_t priority);
  int64_t (*query_stream)(int64_t device, int64_t stream);
  void (*synchronize_stream)(int64_t device, int64_t stream);
  void (*synchronize_device)(int64_t device);
} callbacks;

int num_devices = 1;
thread_local int current_device = 0;
thread_local int64_t current_streams[kMaxDevices] = {};

int index_of(Device device) { return device.has_index() ? device.index() : current_device; }
Stream stream_of(int device, int64_t id) {
  return Stream(Stream::UNSAFE, Device(kType, static_cast<DeviceIndex>(device)), id);
}
void* handle(int64_t event) { return reinterpret_cast<void*>(event); }
int64_t number(void* event) { return reinterpret_cast<int64_t>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kType; }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(kType, static_cast<DeviceIndex>(current_device)); }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = index_of(device); }
  Stream getStream(Device device) const override {
    return stream_of(index_of(device), current_streams[index_of(device)]);
  }
  Stream getDefaultStream(Device device) const override { return stream_of(index_of(device), 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream getNewStream(Device device, int priority) const override {
    return stream_of(index_of(device), callbacks.new_stream(index_of(device), priority));
  }
  Stream exchangeStream(Stream stream) const override {
    Stream before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return static_cast<DeviceIndex>(num_devices); }
  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event) callbacks.destroy(number(*event));
    *event = handle(callbacks.record(stream.device_index(), stream.id()));
  }
  void block(void* event, const Stream& stream) const override {
    if (event) callbacks.block(number(event), stream.device_index(), stream.id());
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    if (event) callbacks.destroy(number(event));
  }
  bool queryEvent(void* event) const override { return !event || callbacks.query(number(event)); }
  void synchronizeEvent(void* event) const override {
    if (event) callbacks.synchronize(number(event));
  }
  bool queryStream(const Stream& stream) const override {
    return callbacks.query_stream(stream.device_index(), stream.id());
  }
  void synchronizeStream(const Stream& stream) const override {
    callbacks.synchronize_stream(stream.device_index(), stream.id());
  }
  void synchronizeDevice(const DeviceIndex device) const override { callbacks.synchronize_device(device); }
};

// Pinned memory is plain memory whose addresses are remembered.
std::mutex pinned_mutex;
std::set<std::pair<const char*, size_t>> pinned;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = c10::GetCPUAllocator()->raw_allocate(size);
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned.emplace(static_cast<const char*>(data), size);
    return {data, data, &release, c10::Device(DeviceType::CPU)};
  }
  static void release(void* data) {
    {
      std::lock_guard<std::mutex> lock(pinned_mutex);
      auto found = pinned.lower_bound({static_cast<const char*>(data), 0});
      if (found != pinned.end() && found->first == data) pinned.erase(found);
    }
    c10::GetCPUAllocator()->raw_deallocate(data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
} pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(num_devices); }
  void setCurrentDevice(DeviceIndex device) const override { current_device = device; }
  DeviceIndex getCurrentDevice() const override { return static_cast<DeviceIndex>(current_device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    auto before = getCurrentDevice();
    current_device = device;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    auto after = pinned.upper_bound({static_cast<const char*>(data), SIZE_MAX});
    if (after == pinned.begin()) return false;
    auto [start, size] = *--after;
    return static_cast<const char*>(data) < start + size;
  }
};

}  // namespace

extern "C" {
void fgpu_install(int devices, const Callbacks* given) {
  num_devices = devices;
  callbacks = *given;
  static Guard* guard = new Guard();
  static Hooks* hooks = new Hooks();
  c10::impl::DeviceGuardImplRegistrar registrar(kType, guard);
  at::RegisterPrivateUse1HooksInterface(hooks);
}
int fgpu_device() { return current_device; }
void fgpu_set_device(int device) { current_device = device; }
int64_t fgpu_stream(int device) { return current_streams[device]; }
void fgpu_set_stream(int device, int64_t stream) { current_streams[device] = stream; }
}
