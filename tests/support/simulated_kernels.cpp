// The kernels of devices (optim/device_kernels.h) on the simulated device: the source that is CUDA's too, run late and
// in the order of the device's streams.
#include <cmath>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "base/small_floats.h"
#include "optim/decades.h"
#include "optim/device_kernels.h"
#include "support/simulated_device.h"
#include "support/simulated_queues.h"

namespace zero::optim::simulated {
namespace {

#include "optim/device_kernels.inc"

struct Launcher {
  template <class T>
  static T* address(T* pointer) {
    if (!pointer) return nullptr;
    return reinterpret_cast<T*>(testing::simulated::Locked()->arena().access(pointer));
  }
  template <class Body>
  static void each(std::int64_t numel, const Body& body, void* stream) {
    queue(stream, [numel, body] {
      for (std::int64_t i = numel; i-- > numel / 4 * 4;) body.template run<1>(i);
      for (std::int64_t four = numel / 4; four-- > 0;) body.template run<4>(four * 4);
    });
  }
  template <class Body>
  static void sums(std::int64_t blocks, const Body& body, double* out, void* stream) {
    queue(stream, [blocks, body, out] {
      for (std::int64_t block = 0; block < blocks; ++block) {
        double sums[kSumLanes] = {};
        for (int place = 0; place < kSumBlockNumel; place += 8) {
          Floats<4> fours[2];
          body.fours(block * kSumBlockNumel + place, 4, fours);
          for (int j = 0; j < 8; ++j) {
            const double value = fours[j / 4].of[j % 4];
            sums[(place + j) % kSumLanes] += value * value;
          }
        }
        for (int half = kSumLanes / 2; half > 0; half /= 2) {
          for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
        }
        if (out) out[block] = sums[0];
      }
    });
  }
  template <class Body>
  static void groups(std::int64_t blocks, const Body& body, void* stream) {
    queue(stream, [blocks, body] {
      for (std::int64_t block = 0; block < blocks; ++block) {
        typename Body::Lane mine[kSumLanes];
        std::int32_t most[2] = {0, 0};
        for (int lane = 0; lane < kSumLanes; ++lane) {
          body.first(block, lane, mine[lane], kCodeTables);
          for (int s = 0; s < 2; ++s) most[s] = std::max(most[s], mine[lane].most[s]);
        }
        for (int lane = 0; lane < kSumLanes; ++lane) body.second(block, lane, mine[lane], most, kCodeTables);
      }
    });
  }

 private:
  static void queue(void* stream, std::function<void()> run) {
    const testing::simulated::Locked device;
    const int before = device->exchange_current(static_cast<int>(reinterpret_cast<std::intptr_t>(stream)));
    device->add_work(std::move(run));
    device->exchange_current(before);
  }
};

const char* no_error() { return nullptr; }

}  // namespace
}  // namespace zero::optim::simulated

namespace zero::testing::simulated {

void use_kernels(bool wanted) {
  static const optim::DeviceKernels kernels =
      optim::simulated::make_device_kernels<optim::simulated::Launcher>(&optim::simulated::no_error);
  optim::register_device_kernels(kDevice, wanted ? &kernels : nullptr);
}

}  // namespace zero::testing::simulated
