//! The memory that this process may use: that of the machine, and the limit of its control group (v1 and v2).

use std::fs;
use std::path::{Component, Path};

use tributary_options::ByteSize;

/// The most memory that the system allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Bytes.
    pub bytes: u64,
    /// Whose limit it is.
    pub of: MemoryLimit,
}

/// Who limits the memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The machine has no more.
    Machine,
    /// The control group of the process, as of a container or a unit of systemd, or a group around it.
    ControlGroup,
}

impl SystemMemory {
    /// The smaller of the two. `None`: neither can be read.
    pub fn read() -> Option<SystemMemory> {
        SystemMemory::below(Path::new("/"))
    }

    /// The same, with the files of `/proc` and `/sys` below another directory.
    fn below(root: &Path) -> Option<SystemMemory> {
        let machine = machine(root).map(|bytes| SystemMemory { bytes, of: MemoryLimit::Machine });
        let group = control_group(root).map(|bytes| SystemMemory { bytes, of: MemoryLimit::ControlGroup });
        // Of two equal ones, that of the group: it is the one that can be raised.
        group.into_iter().chain(machine).min_by_key(|memory| memory.bytes)
    }

    /// What a daemon may take of it without a limit of its own: the rest is for the process itself and for others.
    pub fn share(self) -> u64 {
        self.bytes / 4 * 3
    }

    /// The limit in words: `the limit of its control group (128MiB)`.
    pub fn in_words(self) -> String {
        let size = ByteSize(self.bytes);
        match self.of {
            MemoryLimit::Machine => format!("the memory of this machine ({size})"),
            MemoryLimit::ControlGroup => format!("the limit of its control group ({size})"),
        }
    }
}

/// `MemTotal`, in bytes.
fn machine(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest limit of the group of this process and of the groups around it.
fn control_group(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let mounts: Vec<_> = mounts.lines().filter_map(Mount::read).collect();
    let limit = |line: &str| {
        // Hierarchy, controllers, path: `0::/user.slice` (v2), `9:memory:/docker/0123` (v1).
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_unified = hierarchy == "0" && controllers.is_empty();
        let has_memory = is_unified || controllers.split(',').any(|controller| controller == "memory");
        let mount = mounts.iter().find(|mount| has_memory && mount.is_unified == is_unified)?;
        mount.lowest_limit(root, Path::new(path))
    };
    groups.lines().filter_map(limit).min()
}

/// Where the groups of a hierarchy with limits of memory are mounted.
struct Mount<'a> {
    /// Of v2.
    is_unified: bool,
    /// The group that is at the mount point.
    group: &'a Path,
    point: &'a Path,
}

impl<'a> Mount<'a> {
    /// A line of `mountinfo`: number, parent, device, root, mount point, options, further fields, `-`, type, source, options of
    /// the file system.
    fn read(line: &'a str) -> Option<Mount<'a>> {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (group, point) = (Path::new(mount.next()?), Path::new(mount.next()?));
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1).unwrap_or_default());
        let is_unified = kind == "cgroup2";
        let has_memory = kind == "cgroup" && options.split(',').any(|option| option == "memory");
        (is_unified || has_memory).then_some(Mount { is_unified, group, point })
    }

    /// The lowest limit of this group and of those around it that are mounted.
    fn lowest_limit(&self, root: &Path, group: &Path) -> Option<u64> {
        let file = if self.is_unified { "memory.max" } else { "memory.limit_in_bytes" };
        // In a namespace of control groups a path may lead out of it: then the group at the mount point is the known one.
        let below = group.strip_prefix(self.group).unwrap_or(Path::new(""));
        let is_inside = below.components().all(|component| matches!(component, Component::Normal(_)));
        let point = root.join(self.point.strip_prefix("/").unwrap_or(self.point));
        let limit = |group: &Path| fs::read_to_string(point.join(group).join(file)).ok()?.trim().parse().ok();
        // `max` is no number.
        if is_inside { below } else { Path::new("") }.ancestors().filter_map(limit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryLimit::{ControlGroup, Machine};

    const UNIFIED: &str = "25 21 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                          34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                          35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    /// What is read where these files exist beside those of a machine with 1 GiB.
    fn read(files: &[(&str, &str)]) -> Option<SystemMemory> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/meminfo", "MemTotal:        1048576 kB\nMemFree: 1 kB\n")].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        SystemMemory::below(root.path())
    }

    #[test]
    fn without_a_control_group_the_memory_of_the_machine_is_the_limit() {
        let machine = Some(SystemMemory { bytes: 1 << 30, of: Machine });
        assert_eq!(read(&[]), machine);
        let group = [("proc/self/cgroup", "0::/a\n"), ("proc/self/mountinfo", UNIFIED)];
        assert_eq!(read(&group), machine);
        assert_eq!(read(&[&group[..], &[("sys/fs/cgroup/a/memory.max", "max\n")]].concat()), machine);
        assert_eq!(read(&[&group[..], &[("sys/fs/cgroup/a/memory.max", "9223372036854771712\n")]].concat()), machine);
        assert_eq!(read(&[("proc/meminfo", "")]), None);
    }

    #[test]
    fn the_lowest_limit_of_nested_control_groups_counts_in_both_versions() {
        let of_group = |bytes| Some(SystemMemory { bytes, of: ControlGroup });
        let unified = [
            ("proc/self/cgroup", "0::/system.slice/a.service\n"),
            ("proc/self/mountinfo", UNIFIED),
            ("sys/fs/cgroup/system.slice/memory.max", "134217728\n"),
            ("sys/fs/cgroup/system.slice/a.service/memory.max", "268435456\n"),
        ];
        assert_eq!(read(&unified), of_group(128 << 20));
        let hybrid = [
            ("proc/self/cgroup", "5:cpuset:/x\n4:cpu,memory:/docker/0123\n1:name=systemd:/y\n0::/\n"),
            ("proc/self/mountinfo", HYBRID),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "268435456\n"),
        ];
        assert_eq!(read(&hybrid), of_group(256 << 20));
    }

    #[test]
    fn in_a_container_the_limit_is_at_the_mount_point() {
        let mounted = |root: &str| format!("25 21 0:22 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let limit = ("sys/fs/cgroup/memory.max", "134217728");
        for (group, root) in [("0::/\n", "/"), ("0::/docker/0123\n", "/docker/0123"), ("0::/../other\n", "/..")] {
            let files = [("proc/self/cgroup", group), ("proc/self/mountinfo", &mounted(root)), limit];
            assert_eq!(read(&files), Some(SystemMemory { bytes: 128 << 20, of: ControlGroup }), "{group}");
        }
    }
}
