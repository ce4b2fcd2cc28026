//! A kernel block device over a volume in memory: real filesystems, real clients, real kills.
//! Needs root, /dev/fuse and loop devices; says so and passes where they are missing.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fuse::attach::{AttachError, AttachOptions, Attached, Force, attach};
use thalweg_fuse::loopdev;
use thalweg_fuse::stale::recover_stale;

use crate::common::{MemoryVolume, Place, can_attach, run, text, umount};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

async fn attached(env: &Env, place: &Place, size: u64) -> (Arc<MemoryVolume>, Attached) {
    let volume = MemoryVolume::new(size);
    let options = AttachOptions::default();
    let attached = attach(env, volume.clone(), &place.volume, &options).await.unwrap();
    (volume, attached)
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(seed | 1) >> 7) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filesystem_lives_on_the_device() {
    if !can_attach("a_filesystem_lives_on_the_device") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("filesystem"));
    let (volume, mut attached) = attached(&env, &place, 64 * MIB).await;
    let device = text(&attached.device).to_owned();
    let mounted = text(&place.filesystem).to_owned();
    run("mkfs.ext4", &["-q", "-F", &device]);
    assert!(volume.trimmed.load(SeqCst) > 0, "mkfs discards");
    run("mount", &[&device, &mounted]);
    for seed in 0..50 {
        let content = pattern(seed, 1000 * (seed as usize + 1));
        fs::write(place.filesystem.join(format!("f{seed}")), content).unwrap();
    }
    fs::write(place.filesystem.join("big"), pattern(99, 8 << 20)).unwrap();
    run("sync", &["-f", &mounted]);
    fs::remove_file(place.filesystem.join("big")).unwrap();
    run("sync", &["-f", &mounted]);
    let before = volume.trimmed.load(SeqCst);
    run("fstrim", &[&mounted]);
    assert!(volume.trimmed.load(SeqCst) > before + (8 << 20), "fstrim reaches trim");
    umount(&mounted);
    run("fsck.ext4", &["-f", "-n", &device]);
    run("mount", &[&device, &mounted]);
    for seed in 0..50 {
        let read = fs::read(place.filesystem.join(format!("f{seed}"))).unwrap();
        assert!(read == pattern(seed, 1000 * (seed as usize + 1)), "f{seed}");
    }
    umount(&mounted);
    attached.detach(Force::No).await.unwrap();
    assert!(volume.durable() == volume.now(), "detach leaves nothing unflushed");
    assert!(!place.volume.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fsync_acknowledged_survives_a_crash() {
    if !can_attach("what_fsync_acknowledged_survives_a_crash") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("crash"));
    let (volume, mut attached) = attached(&env, &place, 32 * MIB).await;
    let (device, mounted) = (text(&attached.device).to_owned(), text(&place.filesystem).to_owned());
    run("mkfs.ext4", &["-q", "-F", &device]);
    run("mount", &[&device, &mounted]);
    for round in 0..5u64 {
        let content = pattern(round, 100_000);
        let mut file = File::create(place.filesystem.join("file")).unwrap();
        let before = volume.flushes.load(SeqCst);
        file.write_all(&content).unwrap();
        file.sync_all().unwrap();
        assert!(volume.flushes.load(SeqCst) > before, "fsync reaches flush");
        let (image, dump) = (place.root.join("image"), place.root.join("dump"));
        fs::write(&image, volume.durable()).unwrap();
        // 1 means that the journal was replayed.
        let checked = Command::new("e2fsck").args(["-p", text(&image)]).output().unwrap();
        assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
        run("debugfs", &["-R", &format!("dump /file {}", text(&dump)), text(&image)]);
        assert!(fs::read(&dump).unwrap() == content, "round {round}");
    }
    umount(&mounted);
    attached.detach(Force::No).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn block_requests_arrive() {
    if !can_attach("block_requests_arrive") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("requests"));
    let (volume, mut attached) = attached(&env, &place, 32 * MIB).await;
    let path = text(&attached.device).to_owned();
    let device = OpenOptions::new().read(true).write(true).open(&attached.device).unwrap();
    device.write_all_at(&pattern(3, 4 << 20), 0).unwrap();
    let before = volume.flushes.load(SeqCst);
    device.sync_all().unwrap();
    assert!(volume.flushes.load(SeqCst) > before, "a flush reaches flush");
    assert!(volume.durable()[..4 << 20] == pattern(3, 4 << 20));
    assert!(volume.largest_write.load(SeqCst) >= 256 << 10, "requests are large");
    run("blkdiscard", &["-o", "1048576", "-l", "1048576", &path]);
    assert_eq!(volume.trimmed.load(SeqCst), MIB);
    run("blkdiscard", &["-z", "-o", "2097152", "-l", "4096", &path]);
    let now = volume.now();
    assert!(now[1 << 20..2 << 20].iter().chain(&now[2 << 20..(2 << 20) + 4096]).all(|b| *b == 0));
    assert!(now[3 << 20..4 << 20] == pattern(3, 4 << 20)[3 << 20..]);
    drop(device);
    let device = loopdev::over(&attached.file).unwrap()[0];
    assert!(device.is_direct());
    attached.detach(Force::No).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fio_reads_what_it_wrote() {
    if !can_attach("fio_reads_what_it_wrote") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("fio"));
    let (_volume, mut attached) = attached(&env, &place, 32 * MIB).await;
    let file = format!("--filename={}", text(&attached.device));
    run(
        "fio",
        &["--name=verify", &file, "--rw=randwrite", "--bs=4k", "--direct=1", "--iodepth=16"]
            .iter()
            .copied()
            .chain([
                "--ioengine=libaio",
                "--verify=crc32c",
                "--fsync=64",
                "--size=32m",
                "--verify_state_save=0",
            ])
            .collect::<Vec<_>>(),
    );
    attached.detach(Force::No).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_takes_any_bytes_and_only_from_its_owner() {
    if !can_attach("the_file_takes_any_bytes_and_only_from_its_owner") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("file"));
    let (volume, mut attached) = attached(&env, &place, 8 * MIB).await;
    let file = OpenOptions::new().read(true).write(true).open(&attached.file).unwrap();
    file.write_all_at(b"odd bytes", 100_001).unwrap();
    assert_eq!(&volume.now()[100_000..100_011], b"\0odd bytes\0");
    let mut read = [0; 9];
    file.read_exact_at(&mut read, 100_001).unwrap();
    assert_eq!(&read, b"odd bytes");
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.size(), metadata.mode() & 0o7777), (8 * MIB, 0o600));
    run("fallocate", &["-p", "-o", "100002", "-l", "3", text(&attached.file)]);
    assert_eq!(&volume.now()[100_001..100_010], b"o\0\0\0bytes");
    assert!(file.set_len(1).is_err());
    let end = file.write_at(b"x", 8 * MIB).unwrap_err();
    assert_eq!(end.raw_os_error(), Some(libc::ENOSPC));
    let synced = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(&attached.file);
    synced.unwrap().write_all_at(&[7; 4096], 4096).unwrap();
    assert!(volume.fua_writes.load(SeqCst) > 0 && volume.durable()[4096..8192] == [7; 4096]);
    assert_eq!(seek(&file, 0, libc::SEEK_DATA), 4096);
    assert_eq!(seek(&file, 4096, libc::SEEK_HOLE), 8192);
    // An open directory lets the user reach the mount itself, and FUSE must refuse the access.
    run("chmod", &["755", text(&place.root)]);
    let stranger = Command::new("cat").arg(&attached.file).uid(65534).gid(65534).output().unwrap();
    assert!(!stranger.status.success() && stranger.stdout.is_empty());
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("Permission denied"));
    drop(file);
    attached.detach(Force::No).await.unwrap();
}

fn seek(file: &File, from: i64, whence: i32) -> i64 {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open.
    unsafe { libc::lseek(file.as_raw_fd(), from, whence) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_in_use_is_not_detached() {
    if !can_attach("a_device_in_use_is_not_detached") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("busy"));
    let (_volume, mut attached) = attached(&env, &place, 32 * MIB).await;
    let (device, mounted) = (text(&attached.device).to_owned(), text(&place.filesystem).to_owned());
    run("mkfs.ext4", &["-q", "-F", &device]);
    run("mount", &[&device, &mounted]);
    let refused = attached.detach(Force::No).await.unwrap_err();
    assert!(
        matches!(&refused, AttachError::Busy { mounts, .. } if *mounts == [&*place.filesystem])
    );
    fs::write(place.filesystem.join("still"), "works").unwrap();
    run("sync", &["-f", &mounted]);
    umount(&mounted);

    let open = File::open(&attached.device).unwrap();
    let refused = attached.detach(Force::No).await.unwrap_err();
    assert!(matches!(&refused, AttachError::Busy { mounts, .. } if mounts.is_empty()), "{refused}");
    drop(open);
    run("fsck.ext4", &["-f", "-n", &device]);
    attached.detach(Force::No).await.unwrap();
    attached.detach(Force::No).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_detach_cuts_a_mounted_filesystem_off() {
    if !can_attach("a_forced_detach_cuts_a_mounted_filesystem_off") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("forced"));
    let (volume, mut attached) = attached(&env, &place, 32 * MIB).await;
    let (device, mounted) = (text(&attached.device).to_owned(), text(&place.filesystem).to_owned());
    run("mkfs.ext4", &["-q", "-F", &device]);
    run("mount", &[&device, &mounted]);
    fs::write(place.filesystem.join("last"), pattern(5, 50_000)).unwrap();
    attached.detach(Force::Yes).await.unwrap();
    let image = place.root.join("image");
    fs::write(&image, volume.durable()).unwrap();
    let checked = Command::new("e2fsck").args(["-p", text(&image)]).output().unwrap();
    assert!(matches!(checked.status.code(), Some(0 | 1)), "{checked:?}");
    let dump = place.root.join("dump");
    run("debugfs", &["-R", &format!("dump /last {}", text(&dump)), text(&image)]);
    assert!(fs::read(&dump).unwrap() == pattern(5, 50_000), "what could be written was");
    let _ = Command::new("umount").arg(&mounted).output();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_from_outside_ends_the_wait() {
    if !can_attach("a_detach_from_outside_ends_the_wait") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("outside"));
    let (_volume, mut attached) = attached(&env, &place, 8 * MIB).await;
    assert!(env.timeout(Duration::from_millis(200), attached.wait()).await.is_none());
    let outside = async {
        env.sleep(Duration::from_millis(100)).await;
        run("losetup", &["-d", text(&attached.device)]);
    };
    let both = async { tokio::join!(attached.wait(), outside) };
    env.timeout(PATIENCE, both).await.expect("the wait ends");
    attached.detach(Force::No).await.unwrap();
    assert!(!place.volume.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_takes_the_device_away() {
    if !can_attach("dropping_takes_the_device_away") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("drop"));
    let (_volume, attached) = attached(&env, &place, 8 * MIB).await;
    let (device, file) = (attached.device.clone(), attached.file.clone());
    let refused =
        attach(&env, MemoryVolume::new(MIB), &place.volume, &AttachOptions::default()).await;
    assert!(matches!(refused.unwrap_err(), AttachError::Occupied { .. }));
    let live = recover_stale(&env, &place.volume).await;
    assert!(matches!(live.unwrap_err(), AttachError::Occupied { .. }), "it has a live server");
    // Bytes that only the kernel has: their way out leads through this runtime.
    OpenOptions::new().write(true).open(&device).unwrap().write_all_at(&[1; 4096], 0).unwrap();
    drop(attached);
    for _ in 0..500 {
        let mounted = thalweg_fuse::mounts::at(&place.volume).unwrap().is_some();
        if loopdev::over(&file).unwrap().is_empty() && !mounted {
            return;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
    panic!("{} or its mount is still there", device.display());
}

const CHILD: &str = "THALWEG_TEST_SERVE";

/// No test of its own: the server that the test below kills.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_for_another_test() {
    let Some(volume) = std::env::var_os(CHILD) else { return };
    let options =
        AttachOptions { autoclear: std::env::var_os("AUTOCLEAR").is_some(), ..Default::default() };
    let memory = MemoryVolume::new(32 * MIB);
    let attached = attach(&Env::real(), memory, volume.as_ref(), &options).await.unwrap();
    println!("\ndevice {}", text(&attached.device));
    attached.wait().await;
}

/// Starts a server in a process of its own; gives it and its device.
fn serve(place: &Place, autoclear: bool) -> (std::process::Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "attach::serve_for_another_test", "--nocapture"])
        .env(CHILD, &place.volume);
    if autoclear {
        command.env("AUTOCLEAR", "1");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let device = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("device ").map(str::to_owned))
        .expect("the server names its device");
    (child, device)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_leaves_nothing_that_cannot_be_cleaned_up() {
    if !can_attach("a_killed_server_leaves_nothing_that_cannot_be_cleaned_up") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("killed"));
    let mounted = text(&place.filesystem).to_owned();
    let (mut child, device) = serve(&place, false);
    run("mkfs.ext4", &["-q", "-F", &device]);
    run("mount", &[&device, &mounted]);
    let mut file = File::create(place.filesystem.join("late")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();

    let error = fs::metadata(&place.volume).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    assert!(file.write_all(&[1; 4096]).and_then(|()| file.sync_all()).is_err());
    drop(file);
    let refused =
        attach(&env, MemoryVolume::new(8 * MIB), &place.volume, &AttachOptions::default()).await;
    assert!(matches!(refused.unwrap_err(), AttachError::Occupied { .. }));

    let recovered = recover_stale(&env, &place.volume).await.unwrap();
    assert!(recovered.unmounted && recovered.detached.is_empty());
    assert_eq!(recovered.in_use, [(device.clone().into(), vec![place.filesystem.clone()])]);
    let (_volume, mut again) = attached(&env, &place, 8 * MIB).await;
    assert_ne!(text(&again.device), device, "the old one is still in use");
    umount(&mounted);
    let old = format!("/sys/block/{}/loop", device.trim_start_matches("/dev/"));
    let freed = async {
        while fs::exists(&old).unwrap() {
            env.sleep(Duration::from_millis(10)).await;
        }
    };
    env.timeout(PATIENCE, freed).await.expect("the old device is free with its last user");
    run("dd", &["if=/dev/zero", &format!("of={}", text(&again.device)), "count=8", "status=none"]);
    again.detach(Force::No).await.unwrap();
    assert!(recover_stale(&env, &place.volume).await.unwrap() == Default::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_autoclear_the_device_of_a_killed_server_vanishes() {
    if !can_attach("with_autoclear_the_device_of_a_killed_server_vanishes") {
        return;
    }
    let (env, place) = (Env::real(), Place::new("autoclear"));
    let (mut child, device) = serve(&place, true);
    run("mkfs.ext4", &["-q", "-F", &device]);
    child.kill().unwrap();
    child.wait().unwrap();
    let recovered = recover_stale(&env, &place.volume).await.unwrap();
    assert!(recovered.unmounted && recovered.in_use.is_empty(), "{recovered:?}");
    let (_volume, mut again) = attached(&env, &place, 8 * MIB).await;
    again.detach(Force::No).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: cargo test --profile test-long --test volume -- --ignored --nocapture measure"]
async fn measure_random_writes() {
    let (env, place) = (Env::real(), Place::new("measure"));
    // Interleaved, so that other load on the machine affects all alike.
    for threads in [1, 2, 4].repeat(3) {
        let options = AttachOptions { threads, ..Default::default() };
        let volume = MemoryVolume::new(256 * MIB);
        let mut attached = attach(&env, volume, &place.volume, &options).await.unwrap();
        for (depth, sync) in [("1", "0"), ("32", "0"), ("1", "1"), ("32", "1")] {
            let file = format!("--filename={}", text(&attached.device));
            let (depth_option, sync_option) =
                (format!("--iodepth={depth}"), format!("--fsync={sync}"));
            let mut arguments = vec!["--name=m", &file, "--rw=randwrite", "--bs=4k", "--direct=1"];
            arguments.extend([&*depth_option, &*sync_option, "--ioengine=libaio", "--runtime=2"]);
            arguments.extend(["--time_based", "--minimal", "--size=256m"]);
            let output = run("fio", &arguments);
            let line = String::from_utf8_lossy(&output.stdout).into_owned();
            let rate = line.split(';').nth(48).unwrap_or("?").to_owned();
            println!("threads {threads} depth {depth} fsync {sync}: {rate} writes/s");
        }
        attached.detach(Force::No).await.unwrap();
    }
}
