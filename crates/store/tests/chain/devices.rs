//! Every kind of device against a plain vector of bytes; locks, limits and fallbacks of files.

use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_sim::conformance::{self, Promises, check_all};
use thalweg_store::device::{
    Access, AlignedBuf, Device, DeviceError, DeviceRef, Engine, FileDevice, FileOptions,
    MemoryDevice, Mirror, Partition, Purpose, Side, Stripe,
};

use crate::common::{FaultyDevice, for_random_requests, open_when_released};

const SIZE: u64 = 256 * 1024;

fn options() -> FileOptions {
    FileOptions { sector: Some(512), ..FileOptions::default() }
}

fn blocking() -> FileOptions {
    FileOptions { engine: Engine::Blocking, ..options() }
}

/// A folder on a real filesystem, which has direct I/O.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

async fn new_file(folder: &Path, options: &FileOptions) -> FileDevice {
    FileDevice::create(folder.join("device"), SIZE, options).await.unwrap()
}

async fn file_conforms(parent: Option<&str>, options: &FileOptions) {
    let folder = match parent {
        Some(parent) => tempfile::tempdir_in(parent).unwrap(),
        None => folder(),
    };
    let promises = Promises { grows: true, ..Promises::default() };
    check_all(promises, 12, async || {
        let own = tempfile::tempdir_in(folder.path()).unwrap().keep();
        Arc::new(new_file(&own, options).await) as DeviceRef
    })
    .await;
}

fn memory() -> DeviceRef {
    Arc::new(MemoryDevice::new(SIZE))
}

fn mirror(sides: Vec<Side>) -> DeviceRef {
    Arc::new(Mirror::new(&Env::real(), sides, Arc::new(()), false).unwrap())
}

#[tokio::test]
async fn memory_conforms() {
    check_all(Promises { grows: true, ..Promises::default() }, 24, async || memory()).await;
}

#[tokio::test]
async fn a_file_conforms() {
    file_conforms(None, &options()).await;
}

#[tokio::test]
async fn a_file_on_blocking_threads_conforms() {
    file_conforms(None, &blocking()).await;
}

#[tokio::test]
async fn a_file_through_the_page_cache_conforms() {
    file_conforms(None, &FileOptions { direct: false, ..options() }).await;
}

#[tokio::test]
async fn a_file_in_tmpfs_conforms() {
    file_conforms(Some("/dev/shm"), &options()).await;
    file_conforms(Some("/dev/shm"), &blocking()).await;
}

#[test]
fn a_partition_agrees_with_the_model_and_stays_inside() {
    for_random_requests(24, async |requests| {
        let below = memory();
        let edge = Bytes::from(vec![0xee; 4096]);
        below.write(0, vec![edge.clone()], Purpose::Label).await.unwrap();
        below.write(SIZE - 4096, vec![edge.clone()], Purpose::Label).await.unwrap();
        let partition = Partition::new(below.clone(), 4096, SIZE - 8192).unwrap();
        conformance::run(&partition, requests).await;
        assert_eq!(below.read(0, 4096, Purpose::Label).await.unwrap(), edge);
        assert_eq!(below.read(SIZE - 4096, 4096, Purpose::Label).await.unwrap(), edge);
        assert_eq!(partition.tallies().of(Purpose::Label).reads, 0);
        let user = |device: &dyn Device| device.tallies().of(Purpose::UserData);
        assert_eq!(user(&partition), user(&*below));
    });
    assert!(Partition::new(memory(), 512, SIZE).is_err());
    assert!(Partition::new(memory(), 100, 512).is_err());
}

#[test]
fn a_mirror_agrees_with_the_model() {
    for_random_requests(24, async |requests| {
        let sides = vec![Side::InSync(memory()), Side::InSync(memory())];
        conformance::run(&*mirror(sides), requests).await;
    });
}

#[test]
fn a_degraded_mirror_agrees_with_the_model() {
    for_random_requests(24, async |requests| {
        let stale = memory();
        stale.write(0, vec![Bytes::from(vec![9; 65536])], Purpose::UserData).await.unwrap();
        let sides = vec![Side::Stale(stale), Side::InSync(memory()), Side::Missing];
        conformance::run(&*mirror(sides), requests).await;
    });
}

#[test]
fn stripes_agree_with_the_model() {
    for_random_requests(24, async |requests| {
        let stripe = Stripe::new(vec![memory(), memory(), memory()], 1536).unwrap();
        conformance::run(&stripe, requests.clone()).await;
        let pair = || mirror(vec![Side::InSync(memory()), Side::InSync(memory())]);
        let stripe = Stripe::new(vec![pair(), pair()], 4096).unwrap();
        conformance::run(&stripe, requests).await;
        assert_eq!(stripe.copies(), 2);
    });
}

#[tokio::test]
async fn a_stripe_of_mirrors_repairs_one_copy() {
    let bad = FaultyDevice::new(SIZE);
    let good = FaultyDevice::new(SIZE);
    let pair = mirror(vec![Side::InSync(bad.clone()), Side::InSync(good.clone())]);
    let stripe = Stripe::new(vec![pair, memory()], 4096).unwrap();
    let right = Bytes::from(vec![5; 12288]);
    stripe.write(0, vec![right.clone()], Purpose::UserData).await.unwrap();
    bad.write(0, vec![Bytes::from(vec![6; 8192])], Purpose::UserData).await.unwrap();
    assert_ne!(stripe.read_copy(0, 0, 12288, Purpose::UserData).await.unwrap(), right);
    assert_eq!(stripe.read_copy(1, 0, 12288, Purpose::UserData).await.unwrap(), right);
    stripe.repair_copy(0, 0, right.clone()).await.unwrap();
    assert_eq!(stripe.read_copy(0, 0, 12288, Purpose::UserData).await.unwrap(), right);
    assert_eq!(bad.content().await, good.content().await);
}

#[tokio::test]
async fn a_file_uses_what_the_system_offers_and_keeps_its_content() {
    let folder = folder();
    let device = new_file(folder.path(), &options()).await;
    assert!(device.is_direct() && device.uses_io_uring() && !device.is_block_device());
    let data = Bytes::from(vec![3; 4096]);
    device.write(0, vec![data.slice(..512); 512], Purpose::Map).await.unwrap();
    let too_many = device.write(512, vec![data.slice(..512); 512], Purpose::Map).await;
    assert!(matches!(too_many, Err(DeviceError::OutOfRange { .. })));
    device.flush(Purpose::Map).await.unwrap();
    drop(device);
    let device = FileDevice::open(folder.path().join("device"), &blocking()).await.unwrap();
    assert!(!device.uses_io_uring());
    assert_eq!(device.geometry().size, SIZE);
    let read = device.read(0, 262_144, Purpose::Map).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 3));
}

#[tokio::test]
async fn a_write_of_more_buffers_than_a_call_takes_is_whole() {
    for options in [options(), blocking()] {
        let folder = folder();
        let path = folder.path().join("device");
        let device = FileDevice::create(&path, 1 << 20, &options).await.unwrap();
        let sectors: Vec<Bytes> = (0..2048_u32)
            .map(|i| AlignedBuf::copy_of(&[i as u8 ^ (i >> 8) as u8; 512]).freeze())
            .collect();
        device.write(0, sectors.clone(), Purpose::Map).await.unwrap();
        let read = device.read(0, 1 << 20, Purpose::Map).await.unwrap();
        assert!(sectors.iter().zip(read.chunks(512)).all(|(wrote, read)| wrote == read));
        let durable: Vec<Bytes> = sectors.into_iter().rev().collect();
        device.write_durably(0, durable.clone(), Purpose::Map).await.unwrap();
        let read = device.read(0, 1 << 20, Purpose::Map).await.unwrap();
        assert!(durable.iter().zip(read.chunks(512)).all(|(wrote, read)| wrote == read));
        let tally = device.tallies().of(Purpose::Map);
        assert_eq!((tally.writes, tally.flushes), (2, 1));
    }
}

#[tokio::test]
async fn many_requests_at_once_and_dropped_ones_do_no_harm() {
    let folder = folder();
    let device = Arc::new(new_file(folder.path(), &options()).await);
    let write = |at: u64, fill: u8| {
        let device = device.clone();
        async move {
            let data = vec![Bytes::from(vec![fill; 512])];
            match at % 3 {
                0 => device.write_durably(at * 512, data, Purpose::Map).await.unwrap(),
                _ => device.write(at * 512, data, Purpose::Map).await.unwrap(),
            }
        }
    };
    for at in 0..256 {
        // Queued, then abandoned: the kernel still reads the buffer.
        let mut abandoned = Box::pin(write(at, 1));
        assert!(futures::poll!(&mut abandoned).is_pending());
    }
    device.flush(Purpose::Map).await.unwrap();
    futures::future::join_all((256..512).map(|at| write(at, 2))).await;
    let reads = (0..600).map(|i| device.read((i % 256 + 256) * 512, 512, Purpose::Map));
    for read in futures::future::join_all(reads).await {
        assert!(read.unwrap().iter().all(|byte| *byte == 2));
    }
    // The file is closed, and so unlocked, only when the kernel is done with it.
    let path = folder.path().join("device");
    drop(device);
    let device = FileDevice::open(&path, &options()).await.unwrap();
    let read = device.read(0, 131_072, Purpose::Map).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 1));
}

#[tokio::test]
async fn a_file_cut_short_is_an_error() {
    for options in [options(), blocking()] {
        let folder = folder();
        let device = new_file(folder.path(), &options).await;
        let path = folder.path().join("device");
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
        assert!(device.read(4096, 4096, Purpose::Map).await.is_err());
        assert!(device.read(0, 8192, Purpose::Map).await.is_err());
        assert!(device.read(0, 4096, Purpose::Map).await.is_ok());
    }
}

fn is_locked<T>(result: &Result<T, DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Locked { .. }))
}

#[tokio::test]
async fn an_open_file_is_locked() {
    let folder = folder();
    let path = folder.path().join("device");
    let shared = FileOptions { access: Access::Shared, ..options() };
    let device = new_file(folder.path(), &options()).await;
    assert!(is_locked(&FileDevice::open(&path, &options()).await));
    assert!(is_locked(&FileDevice::open(&path, &shared).await));
    drop(device);
    let one = FileDevice::open(&path, &shared).await.unwrap();
    let two = FileDevice::open(&path, &shared).await.unwrap();
    assert!(is_locked(&FileDevice::open(&path, &options()).await));
    one.lock_range(0, 8192).unwrap();
    two.lock_range(8192, 8192).unwrap();
    assert!(is_locked(&two.lock_range(4096, 8192)));
    drop(one);
    two.lock_range(4096, 8192).unwrap();
}

#[tokio::test]
async fn who_only_reads_minds_no_lock_and_changes_nothing() {
    let folder = folder();
    let path = folder.path().join("device");
    let device = new_file(folder.path(), &options()).await;
    device.write(4096, vec![vec![7; 4096].into()], Purpose::UserData).await.unwrap();
    let reading = FileOptions { access: Access::Reading, ..options() };
    let reader = FileDevice::open(&path, &reading).await.unwrap();
    assert!(reader.read(4096, 4096, Purpose::UserData).await.unwrap().iter().all(|it| *it == 7));
    assert!(reader.write(4096, vec![vec![8; 4096].into()], Purpose::UserData).await.is_err());
    drop(device);
    // It does not exclude other openers either.
    FileDevice::open(&path, &options()).await.unwrap();
    assert!(reader.read(4096, 4096, Purpose::UserData).await.unwrap().iter().all(|it| *it == 7));
}

#[tokio::test]
async fn readers_share_a_write_protected_file_and_keep_writers_away() {
    let folder = folder();
    let path = folder.path().join("device");
    drop(new_file(folder.path(), &options()).await);
    let shared = FileOptions { access: Access::Shared, ..options() };
    let read_only = FileOptions { access: Access::ReadOnly, ..options() };
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(&path, mode(0o444)).unwrap();
    let one = FileDevice::open(&path, &read_only).await.unwrap();
    let two = FileDevice::open(&path, &read_only).await.unwrap();
    std::fs::set_permissions(&path, mode(0o644)).unwrap();
    assert!(is_locked(&FileDevice::open(&path, &options()).await));
    assert!(one.write(0, vec![vec![8; 4096].into()], Purpose::UserData).await.is_err());
    // On a device that several volumes share, ranges are locked separately.
    one.lock_range(0, 8192).unwrap();
    two.lock_range(0, 8192).unwrap();
    let writer = FileDevice::open(&path, &shared).await.unwrap();
    assert!(is_locked(&writer.lock_range(4096, 4096)));
    drop((one, two));
    writer.lock_range(4096, 4096).unwrap();
    let late = FileDevice::open(&path, &read_only).await.unwrap();
    assert!(is_locked(&late.lock_range(0, 8192)));
    drop((writer, late));
    FileDevice::open(&path, &options()).await.unwrap();
}

/// Not a test of its own: the body of the child process of the next one.
#[tokio::test]
async fn child_that_opens() {
    let Ok(path) = std::env::var("THALWEG_TEST_OPEN") else { return };
    let shared = FileOptions { access: Access::Shared, ..options() };
    let outcome = match FileDevice::open(&path, &options()).await {
        Err(DeviceError::Locked { .. }) => match FileDevice::open(&path, &shared).await {
            Ok(device) if is_locked(&device.lock_range(0, 4096)) => "range locked",
            Ok(_) => "shared",
            Err(_) => "locked",
        },
        Err(_) => "error",
        Ok(_) => "open",
    };
    println!("outcome: {outcome}.");
}

fn open_in_child(path: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "devices::child_that_opens", "--nocapture"])
        .env("THALWEG_TEST_OPEN", path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, outcome) = text.split_once("outcome: ").unwrap();
    outcome.split('.').next().unwrap().to_owned()
}

#[tokio::test]
async fn locks_hold_across_processes() {
    let folder = folder();
    let path = folder.path().join("device");
    let device = new_file(folder.path(), &options()).await;
    assert_eq!(open_in_child(&path), "locked");
    drop(device);
    assert_eq!(open_in_child(&path), "open");
    let shared = FileOptions { access: Access::Shared, ..options() };
    let device = FileDevice::open(&path, &shared).await.unwrap();
    assert_eq!(open_in_child(&path), "shared");
    device.lock_range(0, 512).unwrap();
    assert_eq!(open_in_child(&path), "range locked");
}

/// A thread of this process forks a child, which holds every file that is open here until it executes its
/// program; it does so when the returned guard is dropped.
fn between_fork_and_exec() -> impl Drop {
    struct Child(Option<(PipeWriter, JoinHandle<()>)>);

    impl Drop for Child {
        fn drop(&mut self) {
            let (goes_on, thread) = self.0.take().unwrap();
            drop(goes_on);
            thread.join().unwrap();
        }
    }

    let (mut is_there, tells) = std::io::pipe().unwrap();
    let (waits, goes_on) = std::io::pipe().unwrap();
    // The child has a copy of this end, too, which must not keep it waiting.
    let copied = goes_on.as_raw_fd();
    let thread = std::thread::Builder::new().spawn(move || {
        let mut command = Command::new("true");
        // SAFETY: between fork and exec these are system calls on objects that the child owns.
        unsafe {
            command.pre_exec(move || {
                libc::close(copied);
                (&tells).write_all(&[1])?;
                (&waits).read(&mut [0]).map(drop)
            })
        };
        assert!(command.status().unwrap().success());
    });
    is_there.read_exact(&mut [0]).unwrap();
    Child(Some((goes_on, thread.unwrap())))
}

#[tokio::test]
async fn a_closed_file_is_free_while_another_thread_makes_a_child() {
    let folder = folder();
    let path = folder.path().join("device");
    let device = new_file(folder.path(), &options()).await;
    let child = between_fork_and_exec();
    drop(device);
    let shared = FileOptions { access: Access::Shared, ..options() };
    let device = FileDevice::open(&path, &shared).await.unwrap();
    device.lock_range(0, 4096).unwrap();
    drop(child);
    let child = between_fork_and_exec();
    drop(device);
    let device = FileDevice::open(&path, &shared).await.unwrap();
    device.lock_range(0, 4096).unwrap();
    drop(child);
    assert!(is_locked(&FileDevice::open(&path, &options()).await));
}

#[tokio::test]
async fn what_cannot_be_opened_or_made_says_why_and_leaves_nothing() {
    let folder = folder();
    let path = folder.path().join("device");
    assert!(matches!(FileDevice::open(&path, &options()).await, Err(DeviceError::Io { .. })));
    assert!(FileDevice::open(folder.path(), &options()).await.is_err());
    assert!(FileDevice::open("/dev/null", &options()).await.is_err());
    let uneven = FileDevice::create(&path, 1000, &options()).await;
    assert!(matches!(uneven, Err(DeviceError::Misaligned { .. })));
    let huge = FileDevice::create(&path, 1 << 43, &options()).await;
    assert!(huge.is_err());
    assert!(!path.exists());
    drop(new_file(folder.path(), &options()).await);
    assert!(FileDevice::create(&path, SIZE, &options()).await.is_err());
    assert!(path.exists());
    let odd = FileOptions { sector: Some(1000), ..options() };
    assert!(FileDevice::open(&path, &odd).await.is_err());
}

/// A resource of the system for the duration of a test, released by a command.
struct Held(Vec<String>);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = Command::new(&self.0[0]).args(&self.0[1..]).status();
    }
}

fn run(command: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(command).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn mount(kind: &str, options: &str, at: &Path) -> Option<Held> {
    let at = at.to_str()?;
    run("mount", &["-t", kind, "-o", options, "none", at])?;
    Some(Held(["umount", at].map(str::to_owned).to_vec()))
}

fn loop_device(file: &Path) -> Option<(String, Held)> {
    let device = run("losetup", &["--find", "--show", file.to_str()?])?;
    let held = Held(["losetup", "--detach", &device].map(str::to_owned).to_vec());
    Some((device, held))
}

#[test]
fn a_block_device_agrees_with_the_model() {
    let folder = folder();
    let file = folder.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
    let Some((path, _held)) = loop_device(&file) else {
        eprintln!("SKIPPED: no loop device can be made here; run as root");
        return;
    };
    for_random_requests(8, async |requests| {
        std::fs::write(&path, vec![0; SIZE as usize]).unwrap();
        let device = open_when_released(&path, &options()).await;
        assert!(device.is_block_device() && device.is_direct());
        assert!(is_locked(&FileDevice::open(&path, &options()).await));
        assert_eq!(device.geometry().size, SIZE);
        conformance::run(&device, requests).await;
    });
}

#[tokio::test]
async fn a_full_medium_says_so() {
    let folder = folder();
    let Some(_held) = mount("tmpfs", "size=1m", folder.path()) else {
        eprintln!("SKIPPED: nothing can be mounted here; run as root");
        return;
    };
    let path = folder.path().join("device");
    let full = FileDevice::create(&path, 4 << 20, &options()).await;
    assert!(matches!(full, Err(DeviceError::NoSpace { .. })));
    assert!(!path.exists());
    let sparse = FileOptions { sparse: true, ..options() };
    for options in [sparse.clone(), FileOptions { engine: Engine::Blocking, ..sparse }] {
        let device = FileDevice::create(&path, 4 << 20, &options).await.unwrap();
        let data = Bytes::from(vec![1; 2 << 20]);
        let full = device.write(0, vec![data.clone()], Purpose::Map).await;
        assert!(matches!(full, Err(DeviceError::NoSpace { .. })));
        let full = device.write_durably(0, vec![data], Purpose::Map).await;
        assert!(matches!(full, Err(DeviceError::NoSpace { .. })));
        drop(device);
        std::fs::remove_file(&path).unwrap();
    }
}

#[tokio::test]
async fn a_filesystem_without_direct_io_is_used_through_the_page_cache() {
    let folder = folder();
    let Some(_held) = mount("ramfs", "mode=700", folder.path()) else {
        eprintln!("SKIPPED: nothing can be mounted here; run as root");
        return;
    };
    let device = new_file(folder.path(), &options()).await;
    assert!(!device.is_direct());
    let data = Bytes::from(vec![1; 4096]);
    device.write(8192, vec![data.clone()], Purpose::Map).await.unwrap();
    device.flush(Purpose::Map).await.unwrap();
    assert_eq!(device.read(8192, 4096, Purpose::Map).await.unwrap(), data);
}
