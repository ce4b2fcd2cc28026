//! Lines of /etc/fstab that mount a shared filesystem.

use std::ffi::OsString;
use std::path::Path;

use thalweg_cluster::client::address::Address;

/// The variable by which mount(8) is told of another table.
const VARIABLE: &str = "LIBMOUNT_FSTAB";
const TABLE: &str = "/etc/fstab";

/// Warns if fstab mounts a shared filesystem on this directory, and does not say that it needs the network. systemd does not know
/// that of this type: it then mounts the filesystem with the local ones, before there is a network, and the system does not start
/// without it.
pub(super) fn warn_if_local(address: &Address, directory: &Path) {
    let path = std::env::var_os(VARIABLE).unwrap_or_else(|| OsString::from(TABLE));
    let table = std::fs::read_to_string(&path).unwrap_or_default();
    if is_local(&table, address, directory) {
        eprintln!(
            "{address}: its line in {} lacks _netdev, so the system mounts it before there is a network, and does \
             not start when that fails; write _netdev,nofail",
            Path::new(&path).display()
        );
    }
}

/// Whether a table mounts it with the local filesystems.
fn is_local(table: &str, address: &Address, directory: &Path) -> bool {
    table.lines().filter(|line| !line.trim_start().starts_with('#')).any(|line| {
        let mut fields = line.split_whitespace();
        let (source, place, options) = (fields.next(), fields.next(), fields.nth(1));
        let has = |word| options.unwrap_or_default().split(',').any(|option| option == word);
        // The source may leave out the port.
        let source = source.and_then(Address::of).and_then(Result::ok);
        source.as_ref() == Some(address)
            && place.map(Path::new) == Some(directory)
            && !has("_netdev")
            && !has("noauto")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_netdev_is_found() {
        let address = Address::of("files.example:7700:/home").unwrap().unwrap();
        let is_local = |line: &str| {
            let table = format!("# comment\n\n/dev/sda1 / ext4 defaults 0 1\n{line}\n");
            is_local(&table, &address, Path::new("/mnt"))
        };
        for local in [
            "files.example:/home /mnt thalweg defaults 0 0",
            "files.example:7700:/home\t/mnt\tthalweg\tnofail,rw",
            "files.example:/home /mnt thalweg",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "files.example:/home /mnt thalweg _netdev,nofail 0 0",
            "files.example:/home /mnt thalweg noauto 0 0",
            "#files.example:/home /mnt thalweg defaults 0 0",
            "files.example:/home /mnt2 thalweg defaults 0 0",
            "other.example:/home /mnt thalweg defaults 0 0",
            "files.example:/home",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
