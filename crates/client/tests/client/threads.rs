//! Threads with blocking calls and conflicts.

use thalweg_client::{Outcome, Volume};
use thalweg_ipc::Config;
use thalweg_store::block::Lba;
use thalweg_store::txn::{Begin, Options, TxnError};

use crate::rig::{Rig, block};

/// A transaction of this thread that conflicts with another thread.
fn conflict(volume: &Volume) {
    volume.begin(Begin::STRICT).unwrap();
    volume.read(Lba(0), 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| volume.write(Lba(0), &block(1)).unwrap());
    });
    volume.write(Lba(1), &block(1)).unwrap();
    let outcome = volume.end().unwrap();
    assert!(matches!(outcome, Outcome::Aborted(TxnError::Conflict)), "{outcome:?}");
}

/// Whether another thread could retry now.
fn is_free(volume: &Volume) -> bool {
    volume.wait(volume.transact().contention().turn()).is_held()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_met_a_conflict_tries_again_in_turn() {
    let rig = Rig::new();
    let folder = rig.folder.path().to_owned();
    let thread = move || {
        let volume = Volume::open(&folder).unwrap();
        let ends: [&dyn Fn(&Volume); 3] = [
            &|volume| assert!(matches!(volume.end(), Ok(Outcome::Committed(Some(_))))),
            &|volume| volume.abort().unwrap(),
            &|volume| {
                volume.release().unwrap();
            },
        ];
        for end in ends {
            conflict(&volume);
            assert!(is_free(&volume));
            volume.begin(Begin::STRICT).unwrap();
            volume.begin(Begin::STRICT).unwrap();
            volume.end().unwrap();
            assert!(!is_free(&volume), "an inner pair changes nothing");
            end(&volume);
            assert!(is_free(&volume));
            // Only a transaction that follows a conflict is a retry.
            volume.begin(Begin::STRICT).unwrap();
            assert!(is_free(&volume));
            volume.abort().unwrap();
        }
    };
    tokio::task::spawn_blocking(thread).await.unwrap();
}

/// A turn ends with its transaction, whatever the outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_kept_by_no_failure() {
    let rig = Rig::with(Options { max_running: 2, ..Options::default() }, Config::default());
    let folder = rig.folder.path().to_owned();
    let thread = move || {
        let volume = Volume::open(&folder).unwrap();
        let begin = || volume.wait(volume.transact().begin(Begin::STRICT)).unwrap();
        conflict(&volume);
        let others = [begin(), begin()];
        assert!(matches!(volume.begin(Begin::STRICT), Err(TxnError::TooMany(_))));
        assert!(is_free(&volume));
        others.iter().for_each(|other| volume.wait(other.abort()));
        conflict(&volume);
        volume.begin(Begin::STRICT).unwrap();
        volume.begin(Begin::STRICT).unwrap();
        volume.abort().unwrap();
        assert!(!is_free(&volume), "the outer pair goes on");
        volume.abort().unwrap();
        assert!(is_free(&volume));
    };
    tokio::task::spawn_blocking(thread).await.unwrap();
}
