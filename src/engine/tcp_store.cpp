// The store that ranks without MPI meet at: libtorch's TCPStore.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/meeting_store.h"
#include "zero/errors.h"

namespace zero::comm {
namespace {

class TcpStore final : public MeetingStore {
 public:
  TcpStore(c10::intrusive_ptr<c10d::Store> store, std::string where, std::chrono::milliseconds timeout)
      : store_(std::move(store)), where_(std::move(where)), timeout_(timeout) {}

  void set(const std::string& key, const std::string& value) override {
    guarded([&] { store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
  }

  std::string get(const std::string& key) override {
    std::string value;
    for (std::chrono::seconds waited{0}; waited < timeout_ && !has_come(key); waited += kNotice)
      base::log_warning("has waited {} s at {} for {}: is that rank started?", (waited + kNotice).count(), where_, key);
    guarded([&] {
      const std::vector<std::uint8_t> bytes = store_->get(key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }

 private:
  static constexpr std::chrono::seconds kNotice{10};

  /// Within kNotice; also true where the store fails otherwise, as get() will.
  bool has_come(const std::string& key) const {
    const auto begin = std::chrono::steady_clock::now();
    try {
      store_->wait({key}, std::min<std::chrono::milliseconds>(kNotice, timeout_));
      return true;
    } catch (const std::exception&) {
      return std::chrono::steady_clock::now() - begin < kNotice / 2;
    }
  }
  template <class Call>
  void guarded(const Call& call) const {
    try {
      call();
    } catch (const std::exception& error) {
      throw CommError("the ranks could not meet at " + where_ + ": " + first_line(error.what()) +
                      ". Are all ranks started, with the same MASTER_ADDR and MASTER_PORT?");
    }
  }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string where_;
  const std::chrono::milliseconds timeout_;
};

/// Shares the server of a torch.distributed of the same process.
std::unique_ptr<MeetingStore> make_tcp_store(const MeetingPlace& place) {
  const std::string where = place.host + ":" + std::to_string(place.port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = place.serves;
  options.waitWorkers = false;
  options.timeout = place.timeout;
  options.multiTenant = true;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(place.host, options);
    // Others may read what it serves, and meet there again, as long as this process lives.
    static std::vector<c10::intrusive_ptr<c10d::TCPStore>> served;
    if (place.serves) served.push_back(store);
    return std::make_unique<TcpStore>(c10::make_intrusive<c10d::PrefixStore>(place.prefix, store), where,
                                      place.timeout);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw CommError("no store for the ranks to meet at " + where + (place.serves ? " can be served: " : " is found: ") +
                    text.substr(0, text.find('\n')) +
                    ". Set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port.");
  }
}

[[maybe_unused]] const bool g_registered = (set_meeting_store(make_tcp_store), true);

}  // namespace

}  // namespace zero::comm
