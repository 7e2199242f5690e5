#include "kernels/base/allowed_resources.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace annulus {
namespace {

namespace fs = std::filesystem;

std::atomic<int> sharing = 1;

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::optional<double> number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() ? std::nullopt : std::optional(value);
}

bool lists(const std::string& names, std::string_view name) {
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');)
    if (word == name) return true;
  return false;
}

// A hierarchy of control groups: version 2 has a single hierarchy for all controllers.
struct Mount {
  bool version_2 = false;
  std::string controllers;  // in version 1
  fs::path root;            // the group that is mounted
  fs::path point;
};

// Format: proc(5), /proc/pid/mountinfo.
std::vector<Mount> mounts_of(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream lines(root / "proc/self/mountinfo");
  for (std::string line; std::getline(lines, line);) {
    std::string id, parent, device, top, point, word, type, source, options;
    std::istringstream fields(line);
    fields >> id >> parent >> device >> top >> point;
    while (fields >> word && word != "-") {
    }
    fields >> type >> source >> options;
    if (type == "cgroup" || type == "cgroup2") mounts.push_back({type == "cgroup2", options, top, point});
  }
  return mounts;
}

// Returns this process's group in a hierarchy; format: cgroups(7), /proc/pid/cgroup.
std::optional<fs::path> group_in(const Mount& mount, std::string_view controller, const fs::path& root) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (mount.version_2 ? controllers.empty() : lists(controllers, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Folder {
  fs::path path;
  std::string group;
  bool version_2;
};

// Returns the folders of this process's group and of the groups above it, as far as they are mounted. In a container
// the mounted group may be the process's own, under the name that it has outside.
std::vector<Folder> group_folders(std::string_view controller, const fs::path& root) {
  std::vector<Folder> folders;
  for (const Mount& mount : mounts_of(root)) {
    if (!mount.version_2 && !lists(mount.controllers, controller)) continue;
    const auto group = group_in(mount, controller, root);
    if (!group) continue;
    const fs::path top = root / mount.point.relative_path();
    fs::path below = group->lexically_relative(mount.root);
    if (below.empty() || *below.begin() == "..") below = ".";
    fs::path name = *group;
    for (fs::path path = (top / below).lexically_normal();; path = path.parent_path(), name = name.parent_path()) {
      if (path.filename().empty()) path = path.parent_path();
      folders.push_back({path, name.string(), mount.version_2});
      if (path == top || !path.string().starts_with(top.string()) || path == path.parent_path()) break;
    }
  }
  return folders;
}

std::uint64_t identity(const fs::path& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 ? status.st_dev * 0x9e3779b97f4a7c15 + status.st_ino : 1;
}

// Returns the processors that a group may use; none if there is no limit ("max", or -1).
std::optional<double> quota_of(const Folder& folder) {
  std::optional<double> quota, period;
  if (folder.version_2) {
    std::istringstream words(first_line(folder.path / "cpu.max"));
    std::string of_quota, of_period;
    words >> of_quota >> of_period;
    quota = number(of_quota), period = number(of_period);
  } else {
    quota = number(first_line(folder.path / "cpu.cfs_quota_us"));
    period = number(first_line(folder.path / "cpu.cfs_period_us"));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

std::size_t machine_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

AllowedMemory find_allowed_memory(const fs::path& root) {
  AllowedMemory allowed{machine_memory(), "this machine", true, 0};
  for (const Folder& folder : group_folders("memory", root)) {
    const char* const name = folder.version_2 ? "memory.max" : "memory.limit_in_bytes";
    const auto bytes = number(first_line(folder.path / name));
    if (bytes && *bytes >= 0 && *bytes < static_cast<double>(allowed.bytes))
      allowed = {static_cast<std::size_t>(*bytes), fmt::format("control group {} ({})", folder.group, name), true,
                 identity(folder.path)};
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < allowed.bytes)
    allowed = {limit.rlim_cur, "ulimit -v", false, 0};
  return allowed;
}

AllowedProcessors find_allowed_processors(const fs::path& root) {
  AllowedProcessors allowed{static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)), "this machine"};
  for (const Folder& folder : group_folders("cpu", root))
    if (const auto quota = quota_of(folder); quota && *quota < allowed.count)
      allowed = {std::max(1, static_cast<int>(*quota)),
                 fmt::format("control group {} ({})", folder.group, folder.version_2 ? "cpu.max" : "cpu.cfs_quota_us")};
  return allowed;
}

const AllowedMemory& allowed_memory() {
  static const AllowedMemory kAllowed = find_allowed_memory("/");
  return kAllowed;
}

std::size_t free_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  std::size_t pages = 0;  // 0 if unknown
  std::ifstream("/proc/self/statm") >> pages;
  const std::size_t used = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return used < limit.rlim_cur ? limit.rlim_cur - used : 0;
}

void share_memory(int processes) {
  sharing = processes;
}

std::size_t memory_share() {
  return allowed_memory().bytes / static_cast<std::size_t>(std::max(sharing.load(), 1));
}

const AllowedProcessors& allowed_processors() {
  static const AllowedProcessors kAllowed = find_allowed_processors("/");
  return kAllowed;
}

}  // namespace annulus
