//! CPU time and memory of a process, read from /proc.

use std::fs;

/// Clock ticks of /proc/PID/stat per second, on all common Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running process.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub id: u32,
}

/// Resident memory, own and shared, in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub now: f64,
    pub peak: f64,
}

impl Process {
    /// User and system time so far, in seconds.
    ///
    /// The kernel has two totals. `schedstat` counts nanoseconds, but does not include threads that have ended. `stat`
    /// includes them, and rounds user and system time down to 10 ms each. Neither is ever too large, so the larger one is the
    /// more accurate one.
    pub fn cpu_seconds(self) -> f64 {
        let stat = self.read("stat");
        // After the name in parentheses: user and system time are the 12th and 13th fields.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        let nanos: f64 = self.of_threads("schedstat").iter().filter_map(|line| first_number(line)).sum();
        (ticks / TICKS_PER_SECOND).max(nanos / 1e9)
    }

    /// Resident memory.
    pub fn memory(self) -> Memory {
        let status = self.read("status");
        let mib = |key| number_after(&status, key) / 1024.0;
        Memory { now: mib("VmRSS:"), peak: mib("VmHWM:") }
    }

    /// How often its threads went to sleep voluntarily, which is how often they were woken up.
    pub fn sleeps(self) -> f64 {
        self.of_threads("status").iter().map(|status| number_after(status, "voluntary_ctxt_switches:")).sum()
    }

    fn read(self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.id)).unwrap()
    }

    /// The content of this file of each running thread.
    fn of_threads(self, file: &str) -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id)).unwrap();
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join(file)).ok()).collect()
    }
}

/// CPU time of the calling thread, in seconds.
pub fn thread_cpu_seconds() -> f64 {
    first_number(&fs::read_to_string("/proc/thread-self/schedstat").unwrap()).unwrap() / 1e9
}

fn first_number(line: &str) -> Option<f64> {
    line.split_whitespace().next()?.parse().ok()
}

fn number_after(text: &str, key: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(first_number).unwrap_or_else(|| panic!("no {key} in {text}"))
}
