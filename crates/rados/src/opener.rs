//! The process that has an image open, as its lock names it.
//!
//! A lock has no lease, and a client that died looks the same as a running one. A process that opens an image therefore
//! describes itself in the lock's cookie, and a later one on the same machine can tell whether it has ended.

use std::fmt;

use crate::object::LockHolder;

/// A process, as other processes on its machine find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// The machine's name.
    pub host: String,
    /// The machine's identity (`/etc/machine-id`); empty if it has none.
    pub machine: String,
    /// The identity of the start of its kernel.
    pub boot: String,
    /// The namespace that its number belongs to.
    pub namespace: String,
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the kernel's start: tells it from a later process of that number.
    pub started: u64,
}

/// What stands for a part that is unknown.
const UNKNOWN: &str = "-";

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let word = text.split_whitespace().next().unwrap_or_default();
    word.to_owned()
}

/// When the process `pid` was started, unless it has ended. Fields behind the name, which may have any characters: state,
/// and as the twentieth, the start.
fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    match fields.first() {
        Some(&("Z" | "X")) | None => None,
        Some(_) => fields.get(19)?.parse().ok(),
    }
}

impl Opener {
    /// This process.
    pub fn this_process() -> Opener {
        let pid = std::process::id();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Opener {
            host: read("/proc/sys/kernel/hostname"),
            machine: read("/etc/machine-id"),
            boot: read("/proc/sys/kernel/random/boot_id"),
            namespace: namespace.display().to_string(),
            pid,
            started: started(pid).unwrap_or_default(),
        }
    }

    /// The cookie of a lock of this process. `unique` tells it from its other locks.
    pub(crate) fn cookie(&self, unique: uuid::Uuid) -> String {
        let Opener { host, machine, boot, namespace, pid, started } = self;
        let word = |text: &str| match text.is_empty() || text.contains(char::is_whitespace) {
            true => UNKNOWN.to_owned(),
            false => text.to_owned(),
        };
        let words = [host, machine, boot, namespace].map(|text| word(text)).join(" ");
        format!("{unique} {words} {pid} {started}")
    }

    /// The process that took a lock; `None` if its cookie does not say.
    pub fn of(holder: &LockHolder) -> Option<Opener> {
        let words: Vec<&str> = holder.cookie.split(' ').collect();
        let [_, host, machine, boot, namespace, pid, started] = words[..] else { return None };
        let text = |word: &str| match word {
            UNKNOWN => String::new(),
            word => word.to_owned(),
        };
        Some(Opener {
            host: text(host),
            machine: text(machine),
            boot: text(boot),
            namespace: text(namespace),
            pid: pid.parse().ok()?,
            started: started.parse().ok()?,
        })
    }

    /// Whether `other` is known to have ended: it ran on this machine, and the machine was started anew since, or has no
    /// such process any more. Of a process on another machine, or in another container, nothing is known.
    pub fn knows_ended(&self, other: &Opener) -> bool {
        let same = |own: &str, other: &str| !own.is_empty() && own == other;
        if !same(&self.machine, &other.machine) || !same(&self.host, &other.host) {
            return false;
        }
        match same(&self.boot, &other.boot) {
            true => {
                same(&self.namespace, &other.namespace) && started(other.pid) != Some(other.started)
            }
            false => !self.boot.is_empty() && !other.boot.is_empty(),
        }
    }
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Opener { host, pid, .. } = self;
        write!(f, "process {pid} on {}", if host.is_empty() { "an unknown machine" } else { host })
    }
}

/// The holder of a lock for messages: the process, if it is known, and the client.
pub(crate) fn shown(holder: &LockHolder) -> String {
    match Opener::of(holder) {
        Some(opener) => format!("{opener} ({} at {})", holder.client, holder.address),
        None => format!("{} at {}", holder.client, holder.address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(cookie: String) -> LockHolder {
        LockHolder { client: "client.1".to_owned(), cookie, address: "address".to_owned() }
    }

    fn opener() -> Opener {
        let text = |text: &str| text.to_owned();
        let own = Opener::this_process();
        // The machine of a test may have no identity.
        Opener { host: text("h"), machine: text("m"), boot: text("b"), namespace: text("n"), ..own }
    }

    #[test]
    fn a_cookie_names_its_process() {
        let nameless = Opener { machine: String::new(), ..opener() };
        for opener in [Opener::this_process(), opener(), nameless] {
            assert_eq!(Opener::of(&holder(opener.cookie(uuid::Uuid::nil()))), Some(opener));
        }
        assert_eq!(Opener::of(&holder(uuid::Uuid::nil().to_string())), None);
    }

    #[test]
    fn a_process_has_ended_if_this_machine_knows_it() {
        let own = opener();
        assert!(!own.knows_ended(&own), "it runs");
        assert!(own.knows_ended(&Opener { started: own.started + 1, ..own.clone() }));
        assert!(own.knows_ended(&Opener { pid: u32::MAX, ..own.clone() }));
        assert!(own.knows_ended(&Opener { boot: "other".to_owned(), ..own.clone() }));
        let ended = Opener { pid: u32::MAX, ..own.clone() };
        for elsewhere in [
            Opener { host: "other".to_owned(), ..ended.clone() },
            Opener { machine: "other".to_owned(), ..ended.clone() },
            Opener { machine: String::new(), ..ended.clone() },
            Opener { namespace: "other".to_owned(), ..ended.clone() },
            Opener { boot: String::new(), ..ended.clone() },
        ] {
            assert!(!own.knows_ended(&elsewhere), "{elsewhere:?}");
        }
        let nowhere = Opener { machine: String::new(), ..ended };
        assert!(!nowhere.knows_ended(&nowhere));
    }
}
