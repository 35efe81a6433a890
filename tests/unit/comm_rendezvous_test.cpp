// Who am I, from every launcher's variables.
#include "comm/rendezvous.h"

#include <gtest/gtest.h>

#include "zero/errors.h"

namespace zero::comm::comm_rendezvous_test {
namespace {

Discovery discover_in(const Environment& environment) { return discover(environment, "77-1234"); }

std::string error_of(const Environment& environment) {
  try {
    discover_in(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing thrown";
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "wanted \"" << (part) << "\" in: " << (text)

void expect_place(const Discovery& found, Launcher launcher, int rank, int size, int local_rank, int local_size) {
  EXPECT_EQ(found.launcher, launcher) << launcher_name(found.launcher);
  EXPECT_EQ(found.rank, rank);
  EXPECT_EQ(found.size, size);
  EXPECT_EQ(found.local_rank, local_rank);
  EXPECT_EQ(found.local_size, local_size);
}

TEST(Rendezvous, AloneWithoutALauncher) {
  expect_place(discover_in({}), Launcher::kNone, 0, 1, 0, 1);
  // Variables that many tools set for other reasons.
  expect_place(discover_in({{"LOCAL_RANK", "3"}, {"WORLD_SIZE", "8"}, {"HOME", "/root"}}), Launcher::kNone, 0, 1, 0, 1);
}

TEST(Rendezvous, ZeroLaunch) {
  const Environment environment{{"ZERO_RANK", "2"},       {"ZERO_WORLD_SIZE", "4"},
                                {"ZERO_LOCAL_RANK", "2"}, {"ZERO_LOCAL_WORLD_SIZE", "4"},
                                {"ZERO_JOB_ID", "abc"},   {"RANK", "2"},
                                {"WORLD_SIZE", "4"}};
  expect_place(discover_in(environment), Launcher::kZero, 2, 4, 2, 4);
  EXPECT_EQ(discover_in(environment).job_id, "abc");
  expect_place(discover_in({{"ZERO_RANK", "1"}, {"ZERO_WORLD_SIZE", "2"}}), Launcher::kZero, 1, 2, 1, 2);
}

TEST(Rendezvous, Torchrun) {
  const Environment environment{{"RANK", "5"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "4"},
                                {"MASTER_ADDR", "node0"},
                                {"MASTER_PORT", "29500"},
                                {"TORCHELASTIC_RUN_ID", "none"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"}};
  expect_place(discover_in(environment), Launcher::kTorchrun, 5, 8, 1, 4);
  EXPECT_EQ(discover_in(environment).job_id, "torchrun-none-29500-2-77-1234");
  // By hand: no local variables, no agent.
  const Environment by_hand{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}};
  expect_place(discover_in(by_hand), Launcher::kTorchrun, 1, 2, 0, 0);
  EXPECT_EQ(discover_in(by_hand).job_id, "env-1234");
}

TEST(Rendezvous, OpenMpi) {
  const Environment environment{{"OMPI_COMM_WORLD_RANK", "3"},
                                {"OMPI_COMM_WORLD_SIZE", "4"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                {"PMIX_NAMESPACE", "1234.1"}};
  expect_place(discover_in(environment), Launcher::kOpenMpi, 3, 4, 1, 2);
  EXPECT_EQ(discover_in(environment).job_id, "ompi-1234.1");
}

TEST(Rendezvous, MpichAndOtherPmi) {
  expect_place(discover_in({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}),
               Launcher::kPmi, 1, 2, 1, 2);
  EXPECT_EQ(discover_in({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).job_id, "parent-77-1234");
}

TEST(Rendezvous, SlurmOnlyInsideSrun) {
  Environment environment{{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "6"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_JOB_ID", "9"},
                          {"SLURM_TASKS_PER_NODE", "2(x3)"}};
  expect_place(discover_in(environment), Launcher::kNone, 0, 1, 0, 1);  // the batch script itself
  environment["SLURM_STEP_ID"] = "0";
  expect_place(discover_in(environment), Launcher::kSlurm, 5, 6, 1, 2);
  EXPECT_EQ(discover_in(environment).job_id, "slurm-9-0");
  environment["SLURM_TASKS_PER_NODE"] = "4,2";
  EXPECT_EQ(discover_in(environment).local_size, 0);
  environment["SLURM_NTASKS"] = "1";
  environment["SLURM_PROCID"] = "0";
  expect_place(discover_in(environment), Launcher::kNone, 0, 1, 0, 1);
}

/// Programs give torch.distributed the launcher's numbers by these names.
TEST(Rendezvous, CopiedNumbersAreTheLaunchers) {
  const Environment copied = {{"RANK", "3"}, {"WORLD_SIZE", "4"}};
  const auto with = [&](Environment more) {
    more.insert(copied.begin(), copied.end());
    return discover(more, "p");
  };
  const Environment slurm = {{"SLURM_PROCID", "3"},  {"SLURM_STEP_NUM_TASKS", "4"},
                             {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"},
                             {"SLURM_JOB_ID", "7"},  {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
  EXPECT_EQ(with(slurm).launcher, Launcher::kSlurm);
  EXPECT_EQ(with(slurm).local_rank, 1);
  const Environment mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_EQ(with(mpi).launcher, Launcher::kOpenMpi);
  // On one host they meet as they say themselves, and of other numbers the launcher has started something else.
  Environment one_host = mpi, another = mpi;
  one_host["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  another["OMPI_COMM_WORLD_RANK"] = "0";
  EXPECT_EQ(with(one_host).launcher, Launcher::kTorchrun);
  EXPECT_EQ(with(another).launcher, Launcher::kTorchrun);
  // `zero launch --hostfile` tells its ranks all that torchrun does.
  Environment in_full = mpi;
  in_full.insert({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  EXPECT_EQ(with(in_full).launcher, Launcher::kOpenMpi);
}

TEST(Rendezvous, HowRanksLie) {
  const auto spread = [](Environment more) {
    more.insert({{"RANK", "1"}, {"WORLD_SIZE", "4"}});
    return discover(more, "p").spread;
  };
  EXPECT_EQ(spread({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "h1"}}), Spread::kOneHost);
  EXPECT_EQ(spread({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}), Spread::kSeveralHosts);
  // By hand.
  EXPECT_EQ(spread({}), Spread::kOneHost);
  EXPECT_EQ(spread({{"MASTER_ADDR", "127.0.0.1"}}), Spread::kOneHost);
  EXPECT_EQ(spread({{"MASTER_ADDR", "10.77.0.1"}}), Spread::kUnknown);
  EXPECT_EQ(spread({{"MASTER_ADDR", "h1"}, {"LOCAL_RANK", "1"}}), Spread::kUnknown);
  EXPECT_EQ(spread({{"MASTER_ADDR", "h1"}, {"LOCAL_RANK", "0"}}), Spread::kSeveralHosts);
  const Discovery found =
      discover_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(found.master_address, "h1");
  EXPECT_EQ(found.master_port, 29500);
  EXPECT_EQ(is_of_this_host("127.0.0.1"), true);
  EXPECT_EQ(is_of_this_host("no-such-host.invalid"), std::nullopt);
  EXPECT_EQ(is_of_this_host("198.51.100.1"), false);
}

/// Variables of `srun -N2 -n4` with the given --mpi.
TEST(Rendezvous, SrunWithEachWayToStartMpi) {
  const auto under_srun = [](Environment more) {
    more.insert({{"SLURM_PROCID", "3"},
                 {"SLURM_STEP_NUM_TASKS", "4"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}});
    return discover(more, "p");
  };
  const Discovery none = under_srun({}), pmix = under_srun({{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.1.0"}}),
                  pmi2 = under_srun({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "7"}});
  expect_place(pmix, Launcher::kSlurm, 3, 4, 1, 2);
  expect_place(pmi2, Launcher::kPmi, 3, 4, 1, 2);
  for (const Discovery& found : {pmix, pmi2}) EXPECT_EQ(choose_backend(found, "auto", {true, ""}), BackendKind::kMpi);
  EXPECT_FALSE(none.mpi_can_start);
  try {
    choose_backend(none, "auto", {true, "libucp.so.0 is missing"});
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_CONTAINS(std::string(error.what()), "srun --mpi=pmix");
  }
}

TEST(Rendezvous, OurLauncherComesFirst) {
  const Environment environment{{"ZERO_RANK", "1"},    {"ZERO_WORLD_SIZE", "2"},      {"RANK", "1"},
                                {"WORLD_SIZE", "2"},   {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"},
                                {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"},        {"SLURM_STEP_ID", "3"}};
  // mpirun -n 1 and srun may have started our launcher.
  expect_place(discover_in(environment), Launcher::kZero, 1, 2, 1, 2);
}

TEST(Rendezvous, ContradictionsNameVariablesValuesAndRemedy) {
  std::string text = error_of({{"ZERO_RANK", "4"}, {"ZERO_WORLD_SIZE", "4"}});
  EXPECT_CONTAINS(text, "ZERO_RANK=4");
  EXPECT_CONTAINS(text, "ZERO_WORLD_SIZE=4");
  EXPECT_CONTAINS(text, "zero launch");
  text = error_of({{"RANK", "two"}, {"WORLD_SIZE", "4"}});
  EXPECT_CONTAINS(text, "RANK: got \"two\"");
  EXPECT_CONTAINS(error_of({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), "got \"-1\"");
  EXPECT_CONTAINS(error_of({{"RANK", "1 "}, {"WORLD_SIZE", "4"}}), "got \"1 \"");
  EXPECT_CONTAINS(error_of({{"RANK", "99999999999"}, {"WORLD_SIZE", "4"}}), "RANK");
  EXPECT_CONTAINS(error_of({{"ZERO_RANK", "0"}}), "ZERO_WORLD_SIZE is not set although ZERO_RANK");
  EXPECT_CONTAINS(error_of({{"OMPI_COMM_WORLD_SIZE", "2"}}), "OMPI_COMM_WORLD_RANK is not set");
  text = error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_CONTAINS(text, "disagree");
  EXPECT_CONTAINS(text, "torchrun says 2");
  EXPECT_CONTAINS(text, "OMPI_COMM_WORLD_SIZE=4");
  EXPECT_CONTAINS(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}}),
                  "local rank 3");
}

Discovery place(Launcher launcher, int size, int local_size, std::string wanted = {}) {
  Discovery discovery;
  discovery.launcher = launcher;
  discovery.size = size;
  discovery.local_size = local_size;
  discovery.wanted_backend = std::move(wanted);
  discovery.spread = local_size == size || (local_size == 0 && launcher == Launcher::kTorchrun) ? Spread::kOneHost
                                                                                                : Spread::kSeveralHosts;
  return discovery;
}

TEST(Rendezvous, BackendChoice) {
  const Transports kMpi{true, ""}, kNoMpi{false, ""};
  EXPECT_EQ(choose_backend(place(Launcher::kNone, 1, 1), "auto", kMpi), BackendKind::kSelf);
  EXPECT_EQ(choose_backend(place(Launcher::kZero, 4, 4), "auto", kMpi), BackendKind::kShm);
  EXPECT_EQ(choose_backend(place(Launcher::kTorchrun, 4, 4), "auto", kMpi), BackendKind::kShm);
  EXPECT_EQ(choose_backend(place(Launcher::kTorchrun, 4, 0), "auto", kMpi), BackendKind::kShm);
  EXPECT_EQ(choose_backend(place(Launcher::kOpenMpi, 4, 4), "auto", kMpi), BackendKind::kMpi);
  EXPECT_EQ(choose_backend(place(Launcher::kOpenMpi, 4, 4), "auto", kNoMpi), BackendKind::kShm);
  EXPECT_EQ(choose_backend(place(Launcher::kOpenMpi, 4, 2), "auto", kMpi), BackendKind::kMpi);
  EXPECT_EQ(choose_backend(place(Launcher::kSlurm, 4, 4), "auto", kMpi), BackendKind::kShm);
  EXPECT_EQ(choose_backend(place(Launcher::kSlurm, 4, 2), "auto", kMpi), BackendKind::kMpi);
  EXPECT_EQ(choose_backend(place(Launcher::kOpenMpi, 4, 4, "shm"), "auto", kMpi), BackendKind::kShm);
  EXPECT_EQ(choose_backend(place(Launcher::kZero, 4, 4, "mpi"), "auto", kMpi), BackendKind::kMpi);
  EXPECT_EQ(choose_backend(place(Launcher::kZero, 4, 4, "mpi"), "shm", kMpi), BackendKind::kShm);
  EXPECT_EQ(choose_backend(place(Launcher::kNone, 1, 1, "shm"), "auto", kMpi), BackendKind::kShm);
}

TEST(Rendezvous, RanksOfSeveralHostsMeetWithoutMpi) {
  const Transports with_ucx{true, ""}, without_ucx{true, "libucp.so.0 is missing"};
  const auto choose = [](Launcher launcher, int local_size, const char* host, const Transports& transports) {
    Discovery discovery = place(launcher, 4, local_size);
    discovery.master_address = host;
    if (launcher == Launcher::kTorchrun && local_size == 0 && *host == '1') discovery.spread = Spread::kUnknown;
    return choose_backend(discovery, "auto", transports);
  };
  EXPECT_EQ(choose(Launcher::kTorchrun, 2, "10.0.0.1", with_ucx), BackendKind::kUcx);
  EXPECT_EQ(choose(Launcher::kTorchrun, 4, "10.0.0.1", with_ucx), BackendKind::kShm);
  // Started by hand: on one host, unless they meet where others could.
  EXPECT_EQ(choose(Launcher::kTorchrun, 0, "10.0.0.1", with_ucx), BackendKind::kMeet);
  EXPECT_EQ(choose(Launcher::kTorchrun, 0, "10.0.0.1", without_ucx), BackendKind::kShm);
  EXPECT_EQ(choose(Launcher::kTorchrun, 0, "", with_ucx), BackendKind::kShm);
  EXPECT_EQ(choose(Launcher::kSlurm, 2, "10.0.0.1", with_ucx), BackendKind::kMpi);
  EXPECT_THROW(choose(Launcher::kTorchrun, 2, "10.0.0.1", without_ucx), ConfigError);
}

TEST(Rendezvous, RanksOfSrunAloneMeetAtTheFirstNode) {
  const auto at = [](const char* nodes) {
    return discover_in({{"SLURM_PROCID", "1"},
                        {"SLURM_NTASKS", "4"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                        {"SLURM_STEP_NODELIST", nodes},
                        {"SLURM_JOB_ID", "17"},
                        {"SLURM_STEP_ID", "3"}});
  };
  EXPECT_EQ(at("node[07-09,12],other").master_address, "node07");
  EXPECT_EQ(at("n[1,4]").master_address, "n1");
  EXPECT_EQ(at("left,right").master_address, "left");
  EXPECT_EQ(at("node3").master_address, "node3");
  EXPECT_EQ(at("node3").master_port, 20'530);
  EXPECT_EQ(choose_backend(at("node3"), "auto", {true, ""}), BackendKind::kUcx);
}

TEST(Rendezvous, ImpossibleBackendsAreConfigErrors) {
  EXPECT_THROW(choose_backend(place(Launcher::kZero, 2, 2), "nccl", Transports{true, ""}), ConfigError);
  EXPECT_THROW(choose_backend(place(Launcher::kZero, 2, 2, "gloo"), "auto", Transports{true, ""}), ConfigError);
  EXPECT_THROW(choose_backend(place(Launcher::kZero, 2, 2), "self", Transports{true, ""}), ConfigError);
  EXPECT_THROW(choose_backend(place(Launcher::kZero, 2, 2), "mpi", Transports{false, ""}), ConfigError);
  EXPECT_THROW(choose_backend(place(Launcher::kOpenMpi, 4, 2), "shm", Transports{true, ""}), ConfigError);
  EXPECT_THROW(choose_backend(place(Launcher::kTorchrun, 4, 2), "auto", Transports{true, ""}), ConfigError);
  EXPECT_THROW(choose_backend(place(Launcher::kSlurm, 4, 0), "auto", Transports{false, ""}), ConfigError);
}

}  // namespace
}  // namespace zero::comm::comm_rendezvous_test
