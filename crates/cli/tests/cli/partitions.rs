//! Volumes with partitions, and clients of the whole volume: they cannot overwrite partitions.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use crate::files::can_mount;
use crate::run::{Home, Server, bad, can_attach, good, has, json, thalweg, umount};

fn kv(home: &Home, args: &[&str]) -> Command {
    let mut command = thalweg(["kv"]);
    command.arg(home.volume()).args(args);
    command
}

/// A volume with a store that holds a key.
fn with_store() -> Home {
    let home = Home::with_volume("64M", &[]);
    good(&mut kv(&home, &["create", "names", "--size", "4M"]));
    good(&mut kv(&home, &["put", "names", "key", "value"]));
    home
}

fn holds_the_key(home: &Home) {
    assert_eq!(good(&mut kv(home, &["get", "names", "key"])), "value");
    good(&mut kv(home, &["check"]));
}

fn nbdcopy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Command {
    let mut command = Command::new("nbdcopy");
    command.args(["--flush".as_ref(), from.as_ref(), to.as_ref()]);
    command
}

fn is_read_only(server: &Server) -> bool {
    let info = json(Command::new("nbdinfo").args(["--json", &server.uri("vol")]));
    info["exports"][0]["is_read_only"] == true
}

#[test]
fn nbd_clients_copy_a_volume_with_partitions_and_write_it_when_that_is_asked_for() {
    if !has("nbdcopy") || !has("nbdinfo") {
        return;
    }
    let home = with_store();
    std::fs::write(home.path("zeros"), vec![0; 64 << 20]).unwrap();
    let server = home.serve(&[]);
    assert!(is_read_only(&server));
    good(&mut nbdcopy(server.uri("vol"), home.path("copy")));
    let refused = nbdcopy(home.path("zeros"), server.uri("vol")).output().unwrap();
    assert!(!refused.status.success());
    holds_the_key(&home);
    server.end();
    let server = home.serve(&["--writable"]);
    assert!(!is_read_only(&server));
    good(&mut nbdcopy(home.path("zeros"), server.uri("vol")));
    good(&mut nbdcopy(home.path("copy"), server.uri("vol")));
    server.end();
    holds_the_key(&home);
}

/// A client that has negotiated the volume's export, and sends no request.
fn connect(server: &Server) -> UnixStream {
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol").unwrap();
    let mut export = [0; 10];
    stream.read_exact(&mut export).unwrap();
    stream
}

#[test]
fn the_first_partition_waits_for_nbd_clients_to_leave_and_ends_their_writes() {
    if !has("nbdinfo") {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    assert!(!is_read_only(&server));
    let client = connect(&server);
    for said in [
        bad(&mut kv(&home, &["create", "names"]), 1),
        bad(thalweg(["mkfs", "--quiet"]).arg(home.volume()), 1),
    ] {
        assert!(said.contains("an NBD client is connected"), "{said}");
    }
    drop(client);
    while !server_has_no_clients(&home) {
        std::thread::yield_now();
    }
    good(&mut kv(&home, &["create", "names"]));
    assert!(is_read_only(&server));
    server.end();
}

fn server_has_no_clients(home: &Home) -> bool {
    home.status()["connections"] == 0
}

fn flag(device: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    std::fs::read_to_string(format!("/sys/block/{name}/ro")).unwrap().trim().to_owned()
}

#[test]
fn the_device_of_a_volume_with_partitions_is_read_only_unless_asked_for() {
    if !can_attach() {
        return;
    }
    let home = with_store();
    let output = thalweg(["attach"]).arg(home.volume()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("read-only") && said.contains("--writable"), "{said}");
    let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert_eq!(flag(&device), "1");
    let wipe = format!("of={device}");
    bad(Command::new("dd").args(["if=/dev/zero", &wipe, "bs=1M", "count=1"]), 1);
    holds_the_key(&home);
    good(&mut thalweg(["detach", &device]));
    let device = good(thalweg(["attach", "--writable"]).arg(home.volume()));
    let device = device.trim();
    assert_eq!(flag(device), "0");
    good(&mut thalweg(["detach", device]));
    holds_the_key(&home);
}

/// Both begin at the same time on a server that runs already, so that neither finds the other by chance alone.
#[test]
fn of_a_mount_and_a_writable_device_that_begin_at_once_one_is_refused() {
    if !can_attach() || !can_mount() {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    good(thalweg(["mkfs", "--quiet"]).arg(home.volume()));
    let server = home.serve(&[]);
    let root = home.path("root");
    std::fs::create_dir(&root).unwrap();
    for _ in 0..5 {
        let begin = |mut command: Command| command.output().unwrap();
        let (mut mount, mut attach) = (thalweg(["mount"]), thalweg(["attach", "--writable"]));
        mount.arg(home.volume()).arg(&root);
        attach.arg(home.volume());
        let (mounted, attached) = std::thread::scope(|scope| {
            let mounting = scope.spawn(|| begin(mount));
            let attached = begin(attach);
            (mounting.join().unwrap(), attached)
        });
        let begun = [&mounted, &attached].map(|output| output.status.success());
        assert!(begun[0] != begun[1], "{mounted:?} {attached:?}");
        match home.status()["attached"].as_array().is_some_and(|devices| devices.is_empty()) {
            true => umount(thalweg(["umount"]), &root),
            false => drop(good(thalweg(["detach"]).arg(home.volume()))),
        }
    }
    server.end();
}

#[test]
fn no_partition_is_made_on_an_attached_volume() {
    if !can_attach() {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    let device = good(thalweg(["attach"]).arg(home.volume())).trim().to_owned();
    let said = bad(&mut kv(&home, &["create", "names"]), 1);
    assert!(said.contains("attached as a block device") && said.contains("detach"), "{said}");
    let said = bad(thalweg(["mkfs", "--quiet"]).arg(home.volume()), 1);
    assert!(said.contains("attached as a block device"), "{said}");
    good(&mut thalweg(["detach", &device]));
    good(&mut kv(&home, &["create", "names"]));
}

#[test]
fn a_filesystem_keeps_its_partitions_to_itself() {
    let home = Home::with_volume("64M", &[]);
    good(thalweg(["mkfs", "--quiet"]).arg(home.volume()));
    let listed = json(&mut kv(&home, &["list", "--json"]));
    let names: Vec<_> =
        listed.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let meta = names.iter().find(|name| name.ends_with(".meta")).unwrap();
    for args in [&["put", meta, "key", "value"][..], &["delete", meta, "key"]] {
        let said = bad(&mut kv(&home, args), 1);
        assert!(said.contains("part of a filesystem") && said.contains("mount"), "{said}");
    }
    good(&mut kv(&home, &["scan", meta, "--keys"]));
    good(thalweg(["fsck"]).arg(home.volume()));
}
