//! Children of a program with an open volume.

use std::path::Path;

use thalweg_client::{FileError, Filesystem, Volume};
use thalweg_ipc::Config;
use thalweg_store::block::Lba;
use thalweg_store::tree::{Kind, TreeError};
use thalweg_store::txn::{Begin, Options, TxnError};

use crate::rig::{Rig, block};
use crate::sharing::volume_with_files;

/// Runs `work` in a child, which ends as any process does if `work` holds.
fn in_child(work: impl FnOnce() -> bool) {
    // SAFETY: the child calls what a program would call that forks.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: no memory is accessed.
        unsafe { libc::alarm(30) };
        let failed = !work();
        std::process::exit(i32::from(failed));
    }
    let mut status = 0;
    // SAFETY: the status is a place for it.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child was refused nothing, or hung");
}

fn is_refused<T>(result: Result<T, TxnError>) -> bool {
    matches!(result, Err(TxnError::Forked(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_childs_calls_and_drops_leave_the_parents_volume_alone() {
    let rig = Rig::with(Options::default(), Config::default());
    let folder = rig.folder.path().to_owned();
    let thread = move || {
        let volume = Volume::open(&folder).unwrap();
        volume.create_store("names", Kind::Btree, Some(64)).unwrap();
        let store = volume.open_store("names").unwrap();
        volume.put(&store, b"a", b"1").unwrap();
        volume.begin(Begin::STRICT).unwrap();
        volume.put(&store, b"b", b"2").unwrap();
        let mut scan = volume.scan(&store, None, None).unwrap();
        let (mut volume, mut parts) = (Some(volume), Some((store, scan)));
        in_child(|| {
            let volume = volume.take().unwrap();
            let (store, mut scan) = parts.take().unwrap();
            // Futures of the volume fail as well.
            let begin = is_refused(volume.wait(volume.transact().begin(Begin::READ_ONLY)));
            let calls = is_refused(volume.read(Lba(1), 1))
                && is_refused(volume.begin(Begin::STRICT))
                && is_refused(volume.end())
                && volume.check_process().is_err();
            let next = matches!(volume.next(&mut scan), Err(TreeError::Txn(TxnError::Forked(_))));
            volume.close().unwrap();
            drop(volume);
            drop((scan, store));
            // It opens the volume for itself.
            let own = Volume::open(&folder).unwrap();
            let store = own.open_store("names").unwrap();
            begin && calls && next && own.get(&store, b"a").unwrap().is_some()
        });
        let (volume, (store, scan_left)) = (volume.unwrap(), parts.unwrap());
        scan = scan_left;
        assert_eq!(volume.next(&mut scan).unwrap().unwrap().0, &b"a"[..]);
        volume.end().unwrap();
        assert_eq!(volume.get(&store, b"b").unwrap().unwrap(), &b"2"[..]);
    };
    tokio::task::spawn_blocking(thread).await.unwrap();
}

fn files_are_left_alone(path: &Path) {
    let files = Filesystem::open(path.to_str().unwrap(), &Default::default()).unwrap();
    let how = thalweg_client::How { write: true, create: true, ..thalweg_client::How::READ };
    let file = files.open_file(b"/a", how, 0o644).unwrap();
    file.write(&block(1)).unwrap();
    let mut both = Some((files, file));
    in_child(|| {
        let (files, file) = both.take().unwrap();
        let refused = |error| matches!(error, FileError::Forked(_));
        let calls = file.read(1).is_err_and(refused)
            && file.write(b"x").is_err_and(refused)
            && files.attributes(b"/a", true).is_err_and(refused);
        // A device's lock is the parent's.
        let locked = Filesystem::open(path.to_str().unwrap(), &Default::default()).is_err();
        file.close().unwrap();
        files.close().unwrap();
        calls && locked
    });
    let (files, file) = both.unwrap();
    file.write(b"on").unwrap();
    assert_eq!(file.attributes().unwrap().size, 4098);
    drop(file);
    files.close().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_childs_calls_and_drops_leave_the_parents_files_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = volume_with_files(home.path(), "one").await;
    tokio::task::spawn_blocking(move || files_are_left_alone(&path)).await.unwrap();
}
