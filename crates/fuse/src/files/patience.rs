//! How long a request of the kernel waits: until its thread is killed, or for as long as the mount says.
//!
//! A thread that waits for an answer cannot be killed before it has one. The kernel tells a server of that with FUSE_INTERRUPT,
//! which the FUSE library answers by itself, and its users do not learn of it. That request would not say, either, which signal
//! there is, and only some may end a call on a file: a program whose timer rings does not expect `EINTR` from open(2). So a
//! request that waits looks at the pending signals of its thread in /proc, as the kernel does for NFS.

use std::sync::Arc;
use std::time::Duration;

use fuser::Errno;
use thalweg_env::Env;
use thalweg_fs::Filesystem;

/// The pause before a request looks for signals the first time.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause between two looks.
const LONGEST: Duration = Duration::from_millis(200);

/// Which signals end a wait, beside one that kills the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signals {
    /// None: a call that may have changed something is not to be repeated.
    Fatal,
    /// SIGINT, SIGQUIT and SIGTERM, of a program that handles them: it is asked to end. For calls that change nothing.
    Requests,
    /// Every signal that a program handles: for waits that signals are meant to end.
    All,
}

/// What a call fails with when the server was away for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soft {
    /// How long a call waits for a server that is away; `None`: until nothing may be used without it
    /// ([`Filesystem::is_disconnected`]).
    pub limit: Option<Duration>,
    /// The error: `ETIMEDOUT` instead of `EIO`.
    pub is_told_apart: bool,
}

impl Soft {
    fn errno(self) -> Errno {
        if self.is_told_apart { Errno::ETIMEDOUT } else { Errno::EIO }
    }
}

/// How long one request waits.
pub(super) struct Patience {
    pub(super) env: Env,
    /// The thread that waits for the answer; 0 for none that this process can see.
    pub(super) thread: u32,
    pub(super) signals: Signals,
    pub(super) soft: Option<Soft>,
    pub(super) filesystem: Arc<dyn Filesystem>,
}

impl Patience {
    /// Returns when the request is to wait no longer: the answer.
    pub(super) async fn ended(&self) -> Errno {
        let soft = self.soft.filter(|_| self.filesystem.is_remote());
        if self.thread == 0 && soft.is_none() {
            return std::future::pending().await;
        }
        let begun = self.env.now();
        let mut pause = FIRST;
        loop {
            self.env.sleep(pause).await;
            pause = (2 * pause).min(LONGEST);
            if self.thread != 0 && is_interrupted(self.thread, self.signals) {
                return Errno::EINTR;
            }
            let waited = self.env.now().since(begun);
            let is_over = |soft: &Soft| match soft.limit {
                Some(limit) => waited >= limit && self.filesystem.is_away(),
                None => self.filesystem.is_disconnected(),
            };
            if let Some(soft) = soft.filter(is_over) {
                return soft.errno();
            }
        }
    }
}

/// Whether a thread has a signal that ends its wait, or is about to end.
fn is_interrupted(thread: u32, signals: Signals) -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{thread}/{name}"));
    let Ok(status) = read("status") else {
        // It has ended. The program may have further threads, and the request may be one that was left behind.
        return signals == Signals::All;
    };
    Masks::of(&status).end_wait(signals) || read("stat").is_ok_and(|stat| is_exiting(&stat))
}

/// Bits of signals: the first one is that of signal 1.
const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signals that do not kill a process which leaves them alone.
const HARMLESS: u64 = bit(libc::SIGCHLD)
    | bit(libc::SIGCONT)
    | bit(libc::SIGSTOP)
    | bit(libc::SIGTSTP)
    | bit(libc::SIGTTIN)
    | bit(libc::SIGTTOU)
    | bit(libc::SIGURG)
    | bit(libc::SIGWINCH);
/// The signals that ask a program to end.
const REQUESTS: u64 = bit(libc::SIGINT) | bit(libc::SIGQUIT) | bit(libc::SIGTERM);

/// The signals of a thread.
#[derive(Clone, Copy, Default)]
struct Masks {
    /// Those that it is going to get.
    due: u64,
    handled: u64,
}

impl Masks {
    /// Those in its `/proc/PID/status`.
    fn of(status: &str) -> Masks {
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
        };
        let due = (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:");
        Masks { due, handled: mask("SigCgt:") }
    }

    fn end_wait(self, signals: Signals) -> bool {
        let fatal = self.due & !self.handled & !HARMLESS;
        let handled = self.due & self.handled;
        let more = match signals {
            Signals::Fatal => 0,
            Signals::Requests => handled & REQUESTS,
            Signals::All => handled,
        };
        (fatal | more) != 0
    }
}

/// Whether the thread with this `/proc/PID/stat` ends: a killed one closes its files, and has no signal any more.
fn is_exiting(stat: &str) -> bool {
    /// `PF_EXITING` of the kernel.
    const EXITING: u64 = 4;
    // The name may have any characters, also parentheses.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    let state = fields.next();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    // A process whose first thread has ended before the others looks as if it ended.
    !matches!(state, Some("Z" | "X")) && flags & EXITING != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(signal: i32, shared: bool, blocked: u64, ignored: u64, handled: u64) -> Masks {
        let (own, all) = if shared { (0, bit(signal)) } else { (bit(signal), 0) };
        Masks::of(&format!(
            "Name:\tx\nSigPnd:\t{own:016x}\nShdPnd:\t{all:016x}\nSigBlk:\t{blocked:016x}\n\
             SigIgn:\t{ignored:016x}\nSigCgt:\t{handled:016x}\n"
        ))
    }

    #[test]
    fn only_signals_that_may_end_a_call_do() {
        let all = [Signals::Fatal, Signals::Requests, Signals::All];
        let ends = |masks: Masks| all.map(|signals| masks.end_wait(signals));
        for shared in [false, true] {
            // Nothing handles them.
            for fatal in [libc::SIGKILL, libc::SIGTERM, libc::SIGALRM, libc::SIGABRT, 40] {
                assert_eq!(ends(status(fatal, shared, 0, 0, 0)), [true; 3], "{fatal}");
            }
            for harmless in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH] {
                assert_eq!(ends(status(harmless, shared, 0, 0, 0)), [false; 3], "{harmless}");
            }
            let (int, alarm) = (libc::SIGINT, libc::SIGALRM);
            assert_eq!(ends(status(int, shared, 0, 0, bit(int))), [false, true, true]);
            assert_eq!(ends(status(alarm, shared, 0, 0, bit(alarm))), [false, false, true]);
            assert_eq!(ends(status(int, shared, bit(int), 0, 0)), [false; 3], "blocked");
            assert_eq!(ends(status(int, shared, 0, bit(int), 0)), [false; 3], "ignored");
        }
        assert_eq!(ends(Masks::of("Name:\tx\n")), [false; 3]);
    }

    #[test]
    fn a_thread_that_ends_is_seen_and_a_zombie_is_not() {
        let stat = |state: &str, flags: u32| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0");
        assert!(is_exiting(&stat("D", 4_194_308)));
        assert!(!is_exiting(&stat("D", 4_194_304)) && !is_exiting(&stat("Z", 4_194_308)));
        let own = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(!is_exiting(&own) && !is_exiting(""));
    }
}
