//! Which ways to a kernel block device this machine has.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use super::loopdev;

/// A way to a kernel block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The kernel's user-space block driver.
    Ublk,
    /// The kernel's NBD client.
    Nbd,
    /// A FUSE file under a loop device.
    Loop,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Ublk => "ublk",
            Method::Nbd => "nbd",
            Method::Loop => "loop",
        })
    }
}

/// Whether a method can be used here, and why or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The method.
    pub method: Method,
    /// Whether [`attach`](super::attach::attach) can use it.
    pub usable: bool,
    /// The reason, and the remedy if there is one.
    pub reason: String,
}

/// Looks at every method. Nothing is changed by it.
pub fn probe() -> Vec<Availability> {
    let ublk = driver(
        "/dev/ublk-control",
        "ublk_drv",
        "the kernel has the driver, but attach does not speak to it",
    );
    let nbd = driver(
        "/dev/nbd0",
        "nbd",
        "the kernel has the client, but attach does not drive it; \
         serve the volume and use nbd-client with its socket",
    );
    let looped = match usable("/dev/fuse").and_then(|()| usable(loopdev::CONTROL)) {
        Ok(()) => (true, "/dev/fuse and loop devices are there".to_owned()),
        Err(reason) => (false, reason),
    };
    [(Method::Ublk, (false, ublk)), (Method::Nbd, (false, nbd)), (Method::Loop, looped)]
        .into_iter()
        .map(|(method, (usable, reason))| Availability { method, usable, reason })
        .collect()
}

fn driver(node: &str, module: &str, present: &str) -> String {
    if Path::new(node).exists() {
        present.to_owned()
    } else {
        format!("{node} does not exist: the kernel has not loaded {module}")
    }
}

fn usable(node: &str) -> Result<(), String> {
    match OpenOptions::new().read(true).write(true).open(node) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(format!("{node} is closed to this user; run as root"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = node.trim_start_matches("/dev/").trim_end_matches("-control");
            Err(format!("{node} does not exist; try: modprobe {name}"))
        }
        Err(error) => Err(format!("{node} cannot be opened: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_is_named_once_with_a_reason() {
        let found = probe();
        let methods: Vec<_> = found.iter().map(|each| each.method).collect();
        assert_eq!(methods, [Method::Ublk, Method::Nbd, Method::Loop]);
        assert!(found.iter().all(|each| !each.reason.is_empty()));
    }

    #[test]
    fn a_missing_node_names_its_module() {
        let reason = usable("/dev/absent-control").unwrap_err();
        assert!(reason.contains("modprobe absent"), "{reason}");
    }
}
