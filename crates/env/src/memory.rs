//! The memory of the machine that a cache may take.
//!
//! Linux says how much memory programs can still get without swapping (`MemAvailable`), how much the cgroups of
//! this process permit, and whether tasks lately waited for memory (pressure stall information). A program asks
//! now and then, and gives memory back when little is left.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What the system says about its memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryState {
    /// All memory that this process may use.
    pub total: u64,
    /// What it can still get without swapping.
    pub available: u64,
    /// Whether tasks lately waited for memory.
    pub is_short: bool,
}

/// Says how much memory there is.
pub trait MemorySource: Send + Sync + fmt::Debug {
    /// The memory now; `None` where the system does not say.
    fn look(&self) -> Option<MemoryState>;
}

/// The memory of this machine, within the limits of this process's cgroups (version 2).
#[derive(Debug)]
pub struct SystemMemory {
    /// The folder of `/proc`.
    proc: PathBuf,
    /// The folder of each cgroup that contains this process, the innermost first.
    groups: Vec<PathBuf>,
}

/// Tasks waited for memory in more than this share of the last 10 s, in percent.
const STALLED_PERCENT: f64 = 1.0;

impl SystemMemory {
    /// The memory of this process.
    pub fn new() -> SystemMemory {
        SystemMemory::at(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    fn at(proc: &Path, groups: &Path) -> SystemMemory {
        let text = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
        let inner = own.map(|path| groups.join(path));
        let chain = inner.iter().flat_map(|inner| inner.ancestors());
        let groups = chain.take_while(|group| group.starts_with(groups)).map(Path::to_owned);
        SystemMemory { proc: proc.to_owned(), groups: groups.collect() }
    }
}

impl Default for SystemMemory {
    fn default() -> SystemMemory {
        SystemMemory::new()
    }
}

impl MemorySource for SystemMemory {
    fn look(&self) -> Option<MemoryState> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let kilobytes = |name| field(&text, name).map(|value| value << 10);
        let mut state = MemoryState {
            total: kilobytes("MemTotal:")?,
            available: kilobytes("MemAvailable:")?,
            is_short: is_stalled(&self.proc.join("pressure/memory")),
        };
        for group in &self.groups {
            state.is_short |= is_stalled(&group.join("memory.pressure"));
            if let Some((limit, available)) = within(group) {
                state.total = state.total.min(limit);
                state.available = state.available.min(available);
            }
        }
        Some(state)
    }
}

/// The limit of a cgroup in bytes, and what it leaves; `None` without a limit. Cached pages of files that were not
/// used lately count as available.
fn within(group: &Path) -> Option<(u64, u64)> {
    let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number("memory.max")?;
    let used = number("memory.current")?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let idle = field(&stat, "inactive_file").unwrap_or(0);
    Some((limit, limit.saturating_sub(used.saturating_sub(idle))))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_ascii_whitespace);
    let mut found = words.find_map(|mut line| (line.next() == Some(name)).then_some(line))?;
    found.next()?.parse().ok()
}

fn is_stalled(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="));
    let share = some.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    share.is_some_and(|share| share > STALLED_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_tightest_limit_counts() {
        let (proc, groups) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let meminfo = "MemTotal:       8000 kB\nMemFree:  10 kB\nMemAvailable:   4000 kB\n";
        let calm = "some avg10=0.50 avg60=9.00 avg300=9.00 total=9\nfull avg10=7.00\n";
        put(proc.path(), &[("meminfo", meminfo), ("pressure/memory", calm)]);
        let look = || SystemMemory::at(proc.path(), groups.path()).look().unwrap();
        let machine = MemoryState { total: 8000 << 10, available: 4000 << 10, is_short: false };
        assert_eq!(look(), machine);
        put(proc.path(), &[("self/cgroup", "0::/outer/inner\n")]);
        assert_eq!(look(), machine);
        let outer = [
            ("outer/memory.max", "3000000\n"),
            ("outer/memory.current", "2900000\n"),
            ("outer/memory.stat", "anon 5\ninactive_file 400000\n"),
            ("outer/inner/memory.max", "max\n"),
            ("outer/inner/memory.current", "2000\n"),
        ];
        put(groups.path(), &outer);
        let limited = MemoryState { total: 3_000_000, available: 500_000, is_short: false };
        assert_eq!(look(), limited);
        put(groups.path(), &[("outer/inner/memory.pressure", "some avg10=1.50 avg60=0.00\n")]);
        assert_eq!(look(), MemoryState { is_short: true, ..limited });
    }

    #[test]
    fn a_machine_that_says_nothing_is_no_error() {
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(SystemMemory::at(nothing.path(), nothing.path()).look(), None);
    }
}
