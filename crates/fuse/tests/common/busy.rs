//! What another thread's child keeps busy for a moment.

use std::time::Duration;

/// Calls `attempt` until what it returns is not `busy`; after ten seconds it is returned anyhow.
///
/// Tests run in threads of one process. A child that one of them makes holds the files that are open
/// in all of them until it runs its program: a mount with one of these can be in use for a moment
/// although its own test has closed it.
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
