//! Wrong input at the command line: each has a clear error, and no data is lost.

use std::os::unix::fs::FileExt;

use crate::run::{Home, bad, good, thalweg};

fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn create(home: &Home, folder: &str, args: &[&str]) -> std::process::Command {
    let mut it = thalweg(["volume", "create"]);
    it.arg(home.path(folder)).args(["--size", "64M"]).args(args).current_dir(home.path(""));
    it
}

#[test]
fn no_volume() {
    let home = Home::empty();
    let there = home.path("").display().to_string();
    says(&bad(&mut thalweg(["volume", "status", &there]), 1), &["no volume", "volume create"]);
    says(&bad(&mut thalweg(["serve", "/nowhere"]), 1), &["no volume", "/nowhere"]);
    says(&bad(&mut thalweg(["detach", "/nowhere"]), 1), &["no volume"]);
    says(&bad(&mut thalweg(["dump", "/nowhere"]), 1), &["cannot read /nowhere"]);
    says(&bad(&mut thalweg(["dump", "/etc/hostname"]), 1), &["no label of a volume", "--offset"]);
}

#[test]
fn a_link_too_small() {
    let home = Home::empty();
    let said = bad(&mut create(&home, "vol", &["--link", "a:2M", "--link", "b:200M"]), 1);
    says(&said, &["too small"]);
    assert!(!home.path("a").exists() && !home.path("b").exists(), "files were left");
}

#[test]
fn a_link_named_twice() {
    let home = Home::empty();
    let said = bad(&mut create(&home, "vol", &["--link", "a:100M", "--link", "./a:100M"]), 1);
    says(&said, &["same device", "once"]);
}

#[test]
fn a_link_of_another_volume() {
    let home = Home::with_volume("64M", &["--link", "a:100M"]);
    let said = bad(&mut create(&home, "other", &["--link", "a"]), 1);
    says(&said, &["belongs to the volume vol", "thalweg volume destroy"]);
    assert!(!said.contains("force"), "{said}");
    home.status();
}

#[test]
fn a_device_that_holds_something_else() {
    let home = Home::empty();
    let file = std::fs::File::create(home.path("disk")).unwrap();
    file.set_len(100 << 20).unwrap();
    file.write_all_at(&[0x53, 0xef], 1080).unwrap();
    says(&bad(&mut create(&home, "vol", &["--link", "disk"]), 1), &["ext4", "--force"]);
    good(&mut create(&home, "vol", &["--link", "disk", "--force"]));
}

#[test]
fn a_missing_link_is_named() {
    let home = Home::with_volume("64M", &["--link", "a:60M", "--link", "b:60M"]);
    std::fs::rename(home.path("b"), home.path("elsewhere")).unwrap();
    says(&bad(&mut home.on_volume(&["status"], &[]), 1), &["missing", "/b"]);
    std::fs::rename(home.path("elsewhere"), home.path("b")).unwrap();
    home.status();
}

#[test]
fn links_of_two_volumes_swapped() {
    let home = Home::with_volume("64M", &["--link", "a:60M", "--link", "b:60M"]);
    good(&mut create(&home, "other", &["--link", "c:60M", "--link", "d:60M"]));
    std::fs::rename(home.path("b"), home.path("kept")).unwrap();
    std::fs::rename(home.path("d"), home.path("b")).unwrap();
    says(&bad(&mut home.on_volume(&["status"], &[]), 1), &["/b"]);
    std::fs::rename(home.path("b"), home.path("d")).unwrap();
    std::fs::rename(home.path("kept"), home.path("b")).unwrap();
    home.status();
}

#[test]
fn a_newer_format() {
    let home = Home::with_volume("64M", &["--link", "a:100M"]);
    let before = std::fs::read(home.path("a")).unwrap();
    let mut bytes = before.clone();
    // The format's number in header and slot, which no checksum covers.
    for at in [0, 4096, 8192, 12288] {
        bytes[at + 8] = 99;
    }
    std::fs::write(home.path("a"), &bytes).unwrap();
    says(&bad(&mut home.on_volume(&["status"], &[]), 1), &["format 99", "newer"]);
    assert_eq!(std::fs::read(home.path("a")).unwrap(), bytes, "the device was written to");
    std::fs::write(home.path("a"), before).unwrap();
    home.status();
}

#[test]
fn a_volume_where_one_is() {
    let home = Home::with_volume("64M", &[]);
    says(&bad(&mut create(&home, "vol", &[]), 1), &["already holds a volume"]);
    home.status();
}

#[test]
fn two_servers_on_one_volume() {
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    let mut second = thalweg(["serve", "--socket"]);
    let said = bad(second.arg(home.path("second.sock")).arg(home.volume()), 1);
    let holder = format!("process {}", server.pid());
    says(&said, &["in use", &holder, "serve"]);
    // The control socket is gone, but another process still has the volume.
    std::fs::remove_file(home.volume().join("control.sock")).unwrap();
    for command in [&["status"][..], &["scrub"], &["snapshot", "list"], &["rebuild"]] {
        says(&bad(&mut home.on_volume(command, &[]), 1), &["in use", &holder]);
    }
    says(&bad(&mut home.on_volume(&["destroy"], &["--yes"]), 1), &["in use", &holder]);
    server.end();
    let server = home.serve(&[]);
    says(&bad(&mut home.on_volume(&["destroy"], &["--yes"]), 1), &["being served"]);
    assert_eq!(home.status()["exports"][0], "vol");
    server.end();
}

#[test]
fn snapshots_that_cannot_be() {
    let home = Home::with_volume("64M", &[]);
    good(&mut home.on_volume(&["snapshot", "create"], &["monday"]));
    says(&bad(&mut home.on_volume(&["snapshot", "create"], &["monday"]), 1), &["monday"]);
    for name in ["", "a/b", "a@b", &"x".repeat(65)] {
        bad(&mut home.on_volume(&["snapshot", "create"], &[name]), 1);
    }
    says(&bad(&mut home.on_volume(&["snapshot", "delete"], &["sunday"]), 1), &["sunday"]);
    says(
        &bad(&mut home.on_volume(&["snapshot", "rollback"], &["sunday", "--yes"]), 1),
        &["sunday"],
    );
    let sunday = format!("{}@sunday", home.volume().display());
    says(&bad(&mut thalweg(["serve", &sunday]), 1), &["sunday"]);
    says(&bad(&mut thalweg(["volume", "status", &sunday]), 1), &["names a snapshot"]);
}

#[test]
fn sizes_that_cannot_be() {
    let home = Home::with_volume("64M", &[]);
    says(&bad(&mut home.on_volume(&["extend"], &["--size", "1P"]), 1), &["add a link"]);
    bad(&mut home.on_volume(&["extend"], &["--size", "32M"]), 1);
    bad(&mut home.on_volume(&["shrink"], &["--size", "128M"]), 1);
    says(&bad(&mut home.on_volume(&["extend"], &["--size", "tiny"]), 2), &["not a size"]);
    says(&bad(&mut home.on_volume(&["shrink"], &["--link", "nothing"]), 1), &["no member"]);
    assert_eq!(home.status()["size"], 64 << 20);
}

#[test]
fn destroying_needs_a_yes() {
    let home = Home::with_volume("64M", &[]);
    says(&bad(&mut home.on_volume(&["destroy"], &[]), 1), &["--yes"]);
    home.status();
    good(&mut home.on_volume(&["destroy"], &["--yes"]));
    assert!(!home.volume().exists());
}

#[test]
fn a_control_socket_of_a_dead_server_is_in_nobodys_way() {
    let home = Home::with_volume("64M", &[]);
    home.serve(&[]).kill();
    assert!(home.volume().join("control.sock").exists());
    home.status();
    home.serve(&[]).end();
    assert!(!home.volume().join("control.sock").exists());
}

#[test]
fn garbage_on_the_control_socket_harms_nobody() {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    let path = home.volume().join("control.sock");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for garbage in [&b"\xff\xff\xff\xffhello"[..], b"\x05\0\0\0{\"x\"}", b"\x02"] {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The server closes the connection; unread bytes make that a reset.
        let end = stream.read_to_end(&mut answer).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    }
    home.status();
    server.end();
}

#[test]
fn settings_that_cannot_be() {
    let home = Home::with_volume("64M", &[]);
    says(&bad(&mut home.on_volume(&["set"], &[]), 2), &["required"]);
    says(&bad(&mut home.on_volume(&["set"], &["--ram-cache", "4K"]), 1), &["1 MiB"]);
    says(&bad(&mut home.on_volume(&["set"], &["--standby", "perhaps"]), 2), &["perhaps"]);
    says(&bad(&mut create(&home, "other", &["--sector", "1024"]), 1), &["512 or 4096"]);
    assert!(!home.path("other").join("link0").exists());
}

#[test]
fn metrics_of_an_attachment_that_somebody_else_serves() {
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    let mut attach = thalweg(["attach", "--metrics", "127.0.0.1:9"]);
    says(&bad(attach.arg(home.volume()), 1), &["served already", "--metrics"]);
    assert_eq!(home.status()["attached"].as_array().unwrap().len(), 0);
    server.end();
}

/// A program with librados tries to connect; `ceph` has its tests.
#[cfg(not(feature = "librados"))]
#[test]
fn an_image_without_librados() {
    let home = Home::empty();
    let image = "rados:pool/image";
    let at = home.path("").display().to_string();
    for command in [
        &mut create(&home, "vol", &["--link", image, "--link", "rados:pool/other:100M"]),
        &mut create(&home, "vol", &["--link", "a:100M", "--map", image]),
        &mut thalweg(["mkfs", "--in-place", image, "--size", "64M"]),
        &mut thalweg(["volume", "create-in-place", image]),
        &mut thalweg(["volume", "status", image]),
        &mut thalweg(["mount", image, &at]),
        &mut thalweg(["serve", image]),
        &mut thalweg(["dump", image]),
        &mut thalweg(["image", "destroy", image, "--yes"]),
    ] {
        let said = bad(command, 1);
        says(&said, &["rados:pool/image", "make build-ceph", "--features librados"]);
    }
    says(&bad(&mut thalweg(["fsck", image]), 8), &["make build-ceph"]);
    // A volume with a missing kind of devices is not opened without them.
    let home = Home::with_volume("64M", &["--link", "mirror:a:100M,b:100M"]);
    let manifest = home.path("vol/volume.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let b = home.path("b").display().to_string();
    std::fs::write(&manifest, text.replace(&b, image)).unwrap();
    says(&bad(&mut home.on_volume(&["status"], &[]), 1), &[image, "make build-ceph"]);
    std::fs::write(&manifest, text).unwrap();
    assert_eq!(home.state("b"), "online");
}

#[test]
fn an_image_without_a_name() {
    let home = Home::empty();
    for link in ["rados:1G", "rados:", "mirror:rados:p/i,rados:j"] {
        let said = bad(&mut create(&home, "vol", &["--link", link]), 2);
        says(&said, &["rados:POOL/IMAGE"]);
    }
    says(&bad(&mut thalweg(["image", "destroy", "/dev/null", "--yes"]), 1), &["no image"]);
    let unsure = thalweg(["volume", "destroy", "rados:p/i", "--yes"]).output().unwrap();
    assert_eq!(unsure.status.code(), Some(1));
}
