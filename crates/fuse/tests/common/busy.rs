//! Mounts that a child of another test keeps busy for a short time.

use std::time::Duration;

/// Calls `attempt` until its result is not `busy`, for ten seconds at most.
///
/// Tests run in threads of one process. A child process of one of them holds all open files of the process
/// until its exec: so a mount can be in use for a short time after its own test has closed it.
#[allow(clippy::disallowed_methods)]
pub(crate) fn once_free<T>(mut attempt: impl FnMut() -> T, busy: impl Fn(&T) -> bool) -> T {
    for _ in 0..1000 {
        let outcome = attempt();
        if !busy(&outcome) {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    attempt()
}
