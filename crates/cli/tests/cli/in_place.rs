//! In-place volumes, in the commands that chained ones have too.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::block_device::kill_server;
use crate::clients::{free_port, scrape, value};
use crate::run::{Home, bad, bad_json, can_attach, good, has, json, thalweg, umount};

/// A home with an empty in-place volume of 64 MiB, in the file `vol`.
fn empty() -> Home {
    let home = Home::empty();
    good(thalweg(["volume", "create-in-place", "--size", "64M"]).arg(home.volume()));
    home
}

/// A home with a volume that has a filesystem, and a directory to mount it on; `None`, with a message, if
/// this machine cannot mount.
fn with_files() -> Option<(Home, PathBuf)> {
    if !can_attach() {
        return None;
    }
    let home = Home::empty();
    good(thalweg(["mkfs", "--quiet", "--in-place", "--size", "64M"]).arg(home.volume()));
    let root = home.path("mnt");
    fs::create_dir(&root).unwrap();
    Some((home, root))
}

fn mount(home: &Home, root: &Path, options: &str) {
    good(thalweg(["mount", "-o", options]).arg(home.volume()).arg(root));
}

fn write_durably(path: &Path, bytes: &[u8]) {
    let file = fs::File::create(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_all().unwrap();
}

/// Flips a bit of a file.
fn spoil(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    file.sync_all().unwrap();
}

fn dump(path: &Path, args: &[&str]) -> Value {
    json(thalweg(["dump", "--json"]).args(args).arg(path))
}

#[test]
fn a_status_counts_what_the_journal_takes() {
    let Some((home, root)) = with_files() else { return };
    mount(&home, &root, "data=wasteless");
    write_durably(&root.join("a"), b"seven b");
    let status = home.status();
    let store = &status["in_place"];
    assert_eq!((&store["mode"], &store["counts"]["data_bytes"]), (&"wasteless".into(), &7.into()));
    assert!(store["counts"]["journal_bytes"].as_u64().unwrap() > 0, "{status}");
    assert!(store["version"] == store["durable"] && store["dirty"].as_u64().unwrap() > 0);
    assert!(status["transactions"]["commits"].as_u64().unwrap() > 0);
    assert_eq!(status["files"]["inodes"], 2);
    let io = &status["devices"][0]["io"];
    assert!(io["journal"]["write_bytes"].as_u64().unwrap() > 0 && io["map"]["write_bytes"] == 0);
    let text = good(thalweg(["status"]).arg(home.volume()));
    for part in ["wasteless", "7 B of data", "mounted on", "2 inodes", "write amplification"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    umount(thalweg(["umount"]), &root);
    let text = good(thalweg(["status"]).arg(home.volume()));
    assert!(text.contains("in place") && !text.contains("mounted on"), "{text}");
}

#[test]
fn a_mount_is_in_its_mode_from_the_first_write_on() {
    let Some((home, root)) = with_files() else { return };
    for (mode, direct) in [("data", 0), ("ordered", 16)] {
        mount(&home, &root, &format!("data={mode}"));
        write_durably(&root.join(mode), &[7; 16 * 4096]);
        let counts = home.status()["in_place"]["counts"].clone();
        assert_eq!(counts["direct"], direct, "{mode}: {counts}");
        umount(thalweg(["umount"]), &root);
    }
}

#[test]
fn a_status_is_shown_again_with_rates() {
    let home = empty();
    let server = home.serve(&[]);
    let mut watch = thalweg(["status", "--watch", "--interval", "0.1"]);
    let mut child = watch.arg(home.volume()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(out).map(Result::unwrap);
    let now = lines.find(|line| line.contains("now "));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(now.unwrap().contains("0 B/s journal"));
    server.end();
}

#[test]
fn keys_and_values_are_kept_in_place() {
    let home = empty();
    let kv = |args: &[&str]| {
        let mut command = thalweg(["kv"]);
        command.arg(home.volume()).args(args);
        command
    };
    good(&mut kv(&["create", "names", "--size", "4M"]));
    good(&mut kv(&["put", "names", "alice", "42"]));
    // Through the socket for transactions of the process that serves it.
    let server = home.serve(&[]);
    assert_eq!(good(&mut kv(&["get", "names", "alice"])), "42");
    good(&mut kv(&["put", "names", "bob", "7"]));
    let status = home.status();
    assert!(status["transactions"]["commits"].as_u64().unwrap() > 0);
    let sockets = PathBuf::from(status["sockets"].as_str().unwrap());
    assert!(sockets.join("txn.sock").exists() && sockets.join("control.sock").exists());
    // What was acknowledged survives a kill.
    server.kill();
    assert_eq!(good(&mut kv(&["scan", "names"])), "alice\t42\nbob\t7\n");
    good(&mut kv(&["check"]));
}

#[test]
fn a_volume_in_place_is_served_over_nbd() {
    if !has("nbdcopy") || !has("nbdinfo") {
        return;
    }
    let home = empty();
    let server = home.serve(&[]);
    assert_eq!(server.ready["exports"], serde_json::json!(["vol"]));
    let uri = server.uri("vol");
    let size: u64 = good(Command::new("nbdinfo").args(["--size", &uri])).trim().parse().unwrap();
    let bytes: Vec<u8> = (0..size as usize).map(|at| (at / 4096 * 7 + at) as u8).collect();
    fs::write(home.path("image"), &bytes).unwrap();
    good(Command::new("nbdcopy").arg("--flush").arg(home.path("image")).arg(&uri));
    server.kill();
    let server = home.serve(&[]);
    good(Command::new("nbdcopy").arg(server.uri("vol")).arg(home.path("copy")));
    assert!(fs::read(home.path("copy")).unwrap() == bytes);
    server.end();
    let scrubbed = json(thalweg(["scrub", "--json"]).arg(home.volume()));
    assert_eq!(
        (&scrubbed["blocks"], &scrubbed["lost"]),
        (&(size / 4096).into(), &Value::Array(vec![]))
    );
}

#[test]
fn a_volume_in_place_is_a_block_device() {
    if !can_attach() || !has("mkfs.ext4") {
        return;
    }
    let home = empty();
    let attach = || good(thalweg(["attach"]).arg(home.volume())).trim().to_owned();
    let device = attach();
    good(Command::new("mkfs.ext4").args(["-q", &device]));
    good(&mut thalweg(["detach", &device]));
    let device = attach();
    good(Command::new("fsck.ext4").args(["-f", "-n", &device]));
    assert_eq!(home.status()["attached"][0]["device"], device);
    good(thalweg(["detach"]).arg(home.volume()));
    let said = bad(thalweg(["detach"]).arg(home.volume()), 1);
    assert!(said.contains("not attached"), "{said}");
}

#[test]
fn what_chained_volumes_alone_have_is_refused_by_name() {
    let home = empty();
    let at = format!("{}@monday", home.volume().display());
    for command in ["attach", "serve"] {
        let said = bad(&mut thalweg([command, &at]), 1);
        assert!(said.contains("has no snapshots"), "{said}");
    }
    let said = bad(&mut home.on_volume(&["snapshot", "list"], &[]), 1);
    assert!(said.contains("has no snapshots"), "{said}");
    for (command, args) in [
        (&["snapshot", "create"][..], &["monday"][..]),
        (&["extend"], &["--size", "1G"]),
        (&["rebuild"], &[]),
        (&["rebuild-index"], &[]),
        (&["set"], &["--standby"]),
    ] {
        let said = bad(&mut home.on_volume(command, args), 1);
        assert!(said.contains("only chained volumes"), "{command:?}: {said}");
    }
    let said = bad(&mut home.on_volume(&["destroy"], &["--yes"]), 1);
    assert!(said.contains("only chained volumes"), "{said}");
    assert!(home.volume().exists());
    let said = bad(thalweg(["volume", "create-in-place"]).arg(home.volume()), 1);
    assert!(said.contains("is not empty"), "{said}");
    let server = home.serve(&[]);
    let said = bad(thalweg(["volume", "create-in-place", "--force"]).arg(home.volume()), 1);
    assert!(said.contains("served"), "{said}");
    server.end();
}

#[test]
fn a_scrub_and_a_check_find_a_block_that_rotted() {
    let Some((home, root)) = with_files() else { return };
    mount(&home, &root, "data=wasteless");
    write_durably(&root.join("a"), &[b'!'; 4096]);
    umount(thalweg(["umount"]), &root);
    good(thalweg(["fsck"]).arg(home.volume()));
    let image = fs::read(home.volume()).unwrap();
    let found = dump(&home.volume(), &["--entries"]);
    let fields = &found["in_place"]["superblocks"][0]["superblock"];
    let data = fields["data_offset"].as_u64().unwrap() as usize;
    let block = image[data..].chunks(4096).position(|it| it.iter().all(|byte| *byte == b'!'));
    let block = block.unwrap();
    let content = found["in_place"]["map"]["content"].as_array().unwrap();
    let entry = content.iter().find(|it| it[0] == block).unwrap();
    assert!(entry[1].as_u64().unwrap() > 1, "{entry}");
    spoil(&home.volume(), (data + block * 4096 + 77) as u64);
    let scrubbed = bad_json(thalweg(["scrub", "--json"]).arg(home.volume()), 4);
    assert_eq!(scrubbed["lost"], serde_json::json!([block]));
    let said = bad(thalweg(["scrub"]).arg(home.volume()), 4);
    assert!(said.contains("No copy of 1 blocks is right"), "{said}");
    let said = bad(thalweg(["fsck"]).arg(home.volume()), 4);
    assert!(said.contains(&format!("without a right copy, by number: {block}")), "{said}");
    // A repair cannot restore it; it says what is left and the next step.
    let said = bad(thalweg(["fsck", "-y"]).arg(home.volume()), 4);
    for part in ["Left to do:", "1 blocks of which no copy is right", "/a: 1 blocks", "write these"]
    {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    // A check at the system's start does not read everything.
    good(thalweg(["fsck", "-a"]).arg(home.volume()));
    mount(&home, &root, "data=wasteless");
    assert_eq!(fs::read(root.join("a")).unwrap_err().raw_os_error(), Some(libc::EIO));
    umount(thalweg(["umount"]), &root);
}

#[test]
fn a_damaged_sector_of_the_map_is_given_up_by_a_repair_alone() {
    let Some((home, root)) = with_files() else { return };
    mount(&home, &root, "data=wasteless");
    write_durably(&root.join("a"), b"here");
    umount(thalweg(["umount"]), &root);
    let found = dump(&home.volume(), &[]);
    let map = found["in_place"]["superblocks"][0]["superblock"]["map_offset"].as_u64().unwrap();
    // A map sector whose blocks belong to no file.
    spoil(&home.volume(), map + 60 * 512);
    let found = dump(&home.volume(), &[]);
    assert_eq!(found["in_place"]["map"]["damaged"], serde_json::json!([60]));
    for _ in 0..2 {
        let said = bad(thalweg(["fsck"]).arg(home.volume()), 4);
        assert!(
            said.contains("damaged sectors of the map: 1") && said.contains("-y repairs"),
            "{said}"
        );
    }
    let said = bad(thalweg(["fsck", "-y"]).arg(home.volume()), 1);
    assert!(said.contains("damaged sectors of the map: 1"), "{said}");
    good(thalweg(["fsck"]).arg(home.volume()));
    assert_eq!(dump(&home.volume(), &[])["in_place"]["map"]["damaged"], serde_json::json!([]));
}

#[test]
fn a_dump_shows_what_a_crash_left_in_the_journal() {
    let Some((home, root)) = with_files() else { return };
    mount(&home, &root, "data=wasteless,writeback=60");
    for name in ["a", "b", "c"] {
        write_durably(&root.join(name), name.as_bytes());
    }
    kill_server(&home);
    let found = dump(&home.volume(), &[]);
    let journal = &found["in_place"]["journal"];
    let transactions = journal["transactions"].as_array().unwrap();
    assert!(transactions.len() >= 3 && journal["end"] == "clean", "{journal}");
    let tags = transactions.iter().flat_map(|it| it["tags"].as_array().unwrap());
    assert!(tags.clone().any(|tag| tag["kind"] == "bytes" && tag["len"] == 1), "{journal}");
    let text = good(thalweg(["dump", "--entries"]).arg(home.volume()));
    assert!(
        text.contains("1 bytes from 0 on") && text.contains("the journal ends clean"),
        "{text}"
    );
    // Damage the second of them.
    let start =
        found["in_place"]["superblocks"][0]["superblock"]["journal_at"][0].as_u64().unwrap();
    spoil(&home.volume(), start + transactions[1]["offset"].as_u64().unwrap() + 50);
    let end = &dump(&home.volume(), &[])["in_place"]["journal"]["end"];
    assert!(end["rotten"]["later"].as_u64().unwrap() > 0, "{end}");
    for command in [&["fsck"][..], &["fsck", "-n"]] {
        let said = bad(thalweg(command).arg(home.volume()), 8);
        assert!(said.contains("damaged in its middle") && said.contains("fsck -y"), "{said}");
    }
    let said = bad(thalweg(["fsck", "-y"]).arg(home.volume()), 1);
    assert!(said.contains("given up"), "{said}");
    good(thalweg(["fsck"]).arg(home.volume()));
    mount(&home, &root, "data=wasteless");
    assert_eq!(fs::read(root.join("a")).unwrap(), b"a");
    assert!(!root.join("c").exists());
    umount(thalweg(["umount"]), &root);
}

/// Overwrites a part of a device with zeros.
fn lose(device: &Path, at: u64, len: usize) {
    let file = fs::OpenOptions::new().write(true).open(device).unwrap();
    file.write_all_at(&vec![0; len], at).unwrap();
}

fn superblock(volume: &Path) -> Value {
    dump(volume, &[])["in_place"]["superblocks"][0]["superblock"].clone()
}

#[test]
fn a_lost_sector_of_the_map_is_no_empty_volume() {
    let Some((home, root)) = with_files() else { return };
    mount(&home, &root, "data=wasteless");
    write_durably(&root.join("a"), b"here");
    umount(thalweg(["umount"]), &root);
    // The first sector is that of the catalogue's blocks.
    let map = superblock(&home.volume())["map_offset"].as_u64().unwrap();
    lose(&home.volume(), map, 512);
    let said = bad(thalweg(["mount"]).arg(home.volume()).arg(&root), 1);
    assert!(said.contains("damaged") && said.contains("fsck"), "{said}");
    let scrubbed = json(thalweg(["scrub", "--json"]).arg(home.volume()));
    assert_eq!(scrubbed["map_sectors"], 1);
    for args in [&["fsck"][..], &["fsck", "-d"], &["fsck", "-n"]] {
        let said = bad(thalweg(args).arg(home.volume()), 4);
        assert!(
            said.contains("damaged sectors of the map: 1") && said.contains("not checked"),
            "{said}"
        );
    }
    let said = bad(thalweg(["fsck", "-y"]).arg(home.volume()), 1);
    assert!(said.contains("damaged sectors of the map: 1"), "{said}");
    good(thalweg(["fsck", "-d"]).arg(home.volume()));
    mount(&home, &root, "data=wasteless");
    assert_eq!(fs::read(root.join("a")).unwrap(), b"here");
    umount(thalweg(["umount"]), &root);
}

#[test]
fn a_flipped_bit_in_the_catalogue_is_reported_and_repaired() {
    let Some((home, root)) = with_files() else { return };
    let data = superblock(&home.volume())["data_offset"].as_u64().unwrap();
    spoil(&home.volume(), data + 70);
    mount(&home, &root, "data=wasteless");
    write_durably(&root.join("a"), b"here");
    umount(thalweg(["umount"]), &root);
    let said = bad(thalweg(["fsck"]).arg(home.volume()), 4);
    assert!(said.contains("damaged blocks of the catalogue, by number: 0"), "{said}");
    let said = bad(thalweg(["fsck", "-y"]).arg(home.volume()), 1);
    assert!(said.contains("repaired blocks of the catalogue, by number: 0"), "{said}");
    good(thalweg(["fsck"]).arg(home.volume()));
    spoil(&home.volume(), data + 15 * 4096 + 70);
    let scrubbed = json(thalweg(["scrub", "--json"]).arg(home.volume()));
    assert_eq!(scrubbed["catalogue_repaired"], serde_json::json!([15]));
    good(thalweg(["fsck"]).arg(home.volume()));
}

#[test]
fn a_journal_without_superblocks_is_found_by_a_repair() {
    let Some((home, root)) = with_files() else { return };
    mount(&home, &root, "data=wasteless,writeback=60");
    for name in ["a", "b", "c"] {
        write_durably(&root.join(name), name.as_bytes());
    }
    kill_server(&home);
    let journal = superblock(&home.volume())["journal_at"][0].as_u64().unwrap();
    lose(&home.volume(), journal, 8192);
    let said = bad(thalweg(["mount"]).arg(home.volume()).arg(&root), 1);
    assert!(said.contains("both superblocks of the journal") && said.contains("fsck -y"), "{said}");
    for args in [&["fsck"][..], &["fsck", "-n"]] {
        let said = bad(thalweg(args).arg(home.volume()), 8);
        assert!(said.contains("both superblocks of the journal"), "{said}");
    }
    let said = bad(thalweg(["fsck", "-y"]).arg(home.volume()), 1);
    assert!(said.contains("both superblocks of the journal were damaged: repaired"), "{said}");
    good(thalweg(["fsck", "-d"]).arg(home.volume()));
    mount(&home, &root, "data=wasteless");
    for name in ["a", "b", "c"] {
        assert_eq!(fs::read(root.join(name)).unwrap(), name.as_bytes());
    }
    umount(thalweg(["umount"]), &root);
}

#[test]
fn a_volume_without_superblocks_is_restored_from_a_backup() {
    let Some((home, root)) = with_files() else { return };
    mount(&home, &root, "data=wasteless");
    write_durably(&root.join("a"), b"here");
    umount(thalweg(["umount"]), &root);
    // The bytes that a new partition table overwrites, and the first MiB.
    for len in [34 * 512, 1 << 20] {
        lose(&home.volume(), 0, len);
        let said = bad(thalweg(["mount"]).arg(home.volume()).arg(&root), 1);
        assert!(said.contains("both superblocks") && said.contains("fsck -y"), "{said}");
        bad(thalweg(["fsck"]).arg(home.volume()), 8);
        let said = bad(thalweg(["fsck", "-y"]).arg(home.volume()), 1);
        assert!(said.contains("restored from a backup"), "{said}");
        good(thalweg(["fsck", "-d"]).arg(home.volume()));
        mount(&home, &root, "data=wasteless");
        assert_eq!(fs::read(root.join("a")).unwrap(), b"here");
        umount(thalweg(["umount"]), &root);
    }
}

#[test]
fn every_command_takes_a_journal_on_a_device_of_its_own() {
    let home = Home::empty();
    let journal = home.path("journal");
    fs::File::create(&journal).unwrap().set_len(8 << 20).unwrap();
    let mut create = thalweg(["volume", "create-in-place", "--size", "64M", "--journal-dev"]);
    good(create.arg(&journal).arg(home.volume()));
    let with = ["--journal-dev", journal.to_str().unwrap()];
    let kv = |args: &[&str]| good(thalweg(["kv"]).args(with).arg(home.volume()).args(args));
    kv(&["create", "names", "--size", "1M"]);
    let server = home.serve(&with);
    kv(&["put", "names", "k", "v"]);
    let status = home.status();
    let parts = status["devices"].as_array().unwrap();
    assert_eq!((&parts[0]["role"], &parts[1]["role"]), (&"data".into(), &"journal".into()));
    assert!(parts[1]["io"]["journal"]["write_bytes"].as_u64().unwrap() > 0);
    server.kill();
    let found = dump(&journal, &["--entries"]);
    assert!(!found["journal"]["transactions"].as_array().unwrap().is_empty(), "{found}");
    assert_eq!(dump(&home.volume(), &[])["in_place"]["journal"], Value::Null);
    let said = bad(thalweg(["scrub"]).arg(home.volume()), 1);
    assert!(said.contains("--journal-dev"), "{said}");
    good(thalweg(["scrub"]).args(with).arg(home.volume()));
    good(thalweg(["status"]).args(with).arg(home.volume()));
    assert_eq!(kv(&["get", "names", "k"]), "v");
}

#[test]
#[allow(clippy::disallowed_methods)]
fn metrics_tell_of_journal_transactions_and_files() {
    let Some((home, root)) = with_files() else { return };
    let port = free_port();
    let mut command = thalweg(["mount", "-o", "data=selective", "--metrics"]);
    good(command.arg(format!("127.0.0.1:{port}")).arg(home.volume()).arg(&root));
    write_durably(&root.join("a"), &[1; 100]);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let text = scrape(port);
    assert_eq!(value(&text, "thalweg_changed_data_bytes_total", "volume=\"vol\""), 100.0);
    assert!(value(&text, "thalweg_journal_bytes_total", "") > 0.0);
    assert_eq!(value(&text, "thalweg_journal_mode", "mode=\"selective\""), 1.0);
    assert!(value(&text, "thalweg_transactions_total", "outcome=\"committed\"") > 0.0);
    assert!(value(&text, "thalweg_device_written_bytes_total", "purpose=\"journal\"") > 0.0);
    assert_eq!(value(&text, "thalweg_filesystem_inodes", ""), 2.0);
    assert!(
        value(&text, "thalweg_stage_duration_seconds_count", "stage=\"commit_journal\"") >= 1.0
    );
    let shown = good(thalweg(["status", "--latency"]).arg(home.volume()));
    assert!(shown.contains("commit_journal") && shown.contains("slowest flushes"), "{shown}");
    assert!(shown.contains("fuse_fsync") && shown.contains("fuse_queue"), "{shown}");
    assert!(value(&text, "thalweg_stage_duration_seconds_count", "stage=\"fuse_fsync\"") >= 1.0);
    umount(thalweg(["umount"]), &root);
}
