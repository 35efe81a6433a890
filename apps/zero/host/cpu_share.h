#pragma once
// How busy others kept this process's CPUs for a while, which is what makes measured times uncertain.
namespace zero::app {

class CpuShare {
 public:
  /// Begins to watch.
  CpuShare();
  /// Of the time of the CPUs this process may use, the part since the beginning that neither it nor children that have
  /// ended by now have used, 0 to 1; the hypervisor's for others, too. 0 where the system does not say. Local.
  double of_others() const;

 private:
  double busy_s_, total_s_, own_s_;
};

}  // namespace zero::app
