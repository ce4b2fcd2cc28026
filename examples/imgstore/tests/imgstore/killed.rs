//! Stores in processes that are killed in the middle of a call.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use imgstore::process::RemoteStore;
use imgstore::{DATES, IMAGES, ImgError, ImgStore};
use rand::RngExt;
use thalweg_env::Env;
use thalweg_ipc::socket;
use thalweg_store::tree::catalogue;
use thalweg_store::txn::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{Composition, Rig, photo, program};

/// An attempt to replace photo 1 has failed, and nothing has changed.
async fn is_given_up(rig: &Rig, attempt: Result<(), ImgError>) {
    assert!(matches!(attempt, Err(ImgError::Gone(_))), "{attempt:?}");
    // Long before the time limit of a transaction without an owner.
    rig.wait_for_running(0).await;
    let photos = rig.open(Composition::Libraries).await;
    assert_eq!(photos.get(1).await.unwrap(), Some(photo(1, 10, 0)));
    assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), [(10, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_killed_that_has_taken_the_transaction_over() {
    for name in [IMAGES, DATES] {
        let rig = Rig::new().await;
        let photos = rig.open(Composition::Processes).await;
        photos.add(1, &photo(1, 10, 0)).await.unwrap();
        let partition = catalogue::open(&rig.manager, name).await.unwrap();
        let before = rig.store.around.held_up();
        rig.store.around.hold_up(partition.first..partition.first + partition.blocks);
        let (adding, new) = (photos.clone(), photo(1, 20, 1));
        let attempt = rig.env.spawn(async move { adding.add(1, &new).await });
        while rig.store.around.held_up() == before {
            rig.env.sleep(Duration::from_millis(2)).await;
        }
        rig.kill(name);
        let attempt = attempt.await.unwrap();
        rig.wait_for_running(0).await;
        rig.store.around.hold_up(0..0);
        is_given_up(&rig, attempt).await;
        // Until another process serves it.
        let refused = photos.add(2, &photo(2, 5, 0)).await;
        assert!(matches!(refused, Err(ImgError::Gone(_))), "{refused:?}");
        rig.start(name).await;
        photos.add(2, &photo(2, 5, 0)).await.unwrap();
        assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), [(5, 2), (10, 1)]);
        rig.check().await;
    }
}

/// The transaction has no owner then, only a handle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_killed_that_has_not_taken_the_transaction_over() {
    for name in [IMAGES, DATES] {
        let rig = Rig::new().await;
        let photos = rig.open(Composition::Processes).await;
        photos.add(1, &photo(1, 10, 0)).await.unwrap();
        rig.stop(name).await;
        let (adding, new) = (photos.clone(), photo(1, 20, 1));
        let attempt = rig.env.spawn(async move { adding.add(1, &new).await });
        rig.wait_for_running(1).await;
        // Time for the request to leave.
        rig.env.sleep(Duration::from_millis(20)).await;
        assert!(!attempt.is_finished());
        rig.kill(name);
        is_given_up(&rig, attempt.await.unwrap()).await;
        rig.start(name).await;
        photos.add(1, &photo(1, 30, 2)).await.unwrap();
        rig.check().await;
    }
}

/// The client does not try its idle connections one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_killed_is_missed_once() {
    let rig = Rig::new().await;
    let photos = rig.open(Composition::Processes).await;
    photos.add(1, &photo(1, 10, 0)).await.unwrap();
    rig.get_at_once(&photos, 1, 8).await;
    rig.kill(IMAGES);
    rig.start(IMAGES).await;
    assert!(matches!(photos.get(1).await, Err(ImgError::Gone(_))));
    assert_eq!(photos.get(1).await.unwrap(), Some(photo(1, 10, 0)));
    rig.check().await;
}

/// Numbers that each task uses.
const NUMBERS: u64 = 6;

/// Adds photos until told to stop, and until all numbers of the task are in use; returns the added ones by number: date and
/// stamp.
async fn add_on(
    env: Env,
    photos: ImgStore,
    task: u64,
    stop: Arc<AtomicBool>,
) -> BTreeMap<u64, (u64, u64)> {
    let mut rng = env.rng();
    let mut model = BTreeMap::new();
    for stamp in 0.. {
        if stop.load(Ordering::Relaxed) && model.len() as u64 == NUMBERS {
            break;
        }
        let (id, date) = (rng.random_range(0..NUMBERS) * 100 + task, rng.random_range(0..9));
        match photos.add(id, &photo(id, date, stamp)).await {
            Ok(()) => drop(model.insert(id, (date, stamp))),
            // This process commits: a call that could not reach a store has not committed.
            Err(ImgError::Gone(_)) => env.sleep(Duration::from_millis(2)).await,
            Err(error) => panic!("{error}"),
        }
    }
    model
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_are_killed_at_any_moment_of_many_adders() {
    // A store that is killed between its release and its answer leaves a transaction without an owner.
    let options = Options { idle: Duration::from_secs(1), ..Options::default() };
    let rig = Rig::with(options).await;
    let photos = rig.open(Composition::Processes).await;
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|task| rig.env.spawn(add_on(rig.env.clone(), photos.clone(), task, stop.clone())))
        .collect();
    let mut rng = rig.env.rng();
    for name in [IMAGES, DATES].repeat(5) {
        rig.env.sleep(Duration::from_micros(rng.random_range(20_000..60_000))).await;
        rig.kill(name);
        rig.start(name).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut model = BTreeMap::new();
    for task in tasks {
        model.extend(task.await.unwrap());
    }
    let mut wanted: Vec<_> = model.iter().map(|(id, (date, _))| (*date, *id)).collect();
    wanted.sort_unstable();
    assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), wanted);
    for (id, (date, stamp)) in model {
        assert_eq!(photos.get(id).await.unwrap(), Some(photo(id, date, stamp)));
    }
    rig.check().await;
}

/// The listener is not a store: it sends other answers, or closes the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_from_a_store_ends_the_transaction() {
    let answers: [&[u8]; 4] = [b"", &[9, 0, 0, 0, 1], &[0xff; 8], &[3, 0, 0, 0, 7, 7, 7]];
    for answer in answers {
        let rig = Rig::new().await;
        let real = rig.open(Composition::Libraries).await;
        real.add(1, &photo(1, 10, 0)).await.unwrap();
        let listener = socket::listen(rig.folder.path(), "images.sock", 1).unwrap();
        let _liar = rig.env.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 64];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(answer).await.unwrap();
        });
        let photos = ImgStore::processes(rig.volume(), rig.folder.path());
        is_given_up(&rig, photos.add(1, &photo(1, 20, 1)).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_to_a_store_ends_the_connection_alone() {
    let rig = Rig::new().await;
    let photos = rig.open(Composition::Processes).await;
    // Too long, an invalid message, and an unknown handle.
    let handle = [&[2, 0, 0, 0][..], &[5, 0]].concat();
    for (request, is_answered) in
        [(&[0xff; 8][..], false), (&[1, 0, 0, 0, 7], false), (&handle, true)]
    {
        let stream = socket::connect(rig.folder.path(), "dates.sock").await.unwrap();
        let mut stream = stream.unwrap();
        stream.write_all(request).await.unwrap();
        let answer = rig.env.timeout(Duration::from_secs(10), stream.read_u8()).await;
        assert_eq!(answer.expect("it waits").is_ok(), is_answered, "{request:?}");
    }
    photos.add(1, &photo(1, 10, 0)).await.unwrap();
    rig.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_ends_with_the_server_of_its_volume() {
    let mut rig = Rig::new().await;
    let store = RemoteStore::new(rig.volume(), rig.folder.path(), DATES);
    let mut command = program(rig.folder.path(), &["serve", DATES]);
    let mut process = command.stderr(Stdio::null()).spawn().unwrap();
    let photos =
        ImgStore::new(rig.volume(), Arc::new(store), rig.endpoints(Composition::Libraries).await.1);
    while photos.get(0).await.is_err() {
        rig.env.sleep(Duration::from_millis(5)).await;
    }
    rig.server = None;
    for _ in 0..1000 {
        if let Some(status) = process.try_wait().unwrap() {
            assert!(!status.success());
            return;
        }
        rig.env.sleep(Duration::from_millis(10)).await;
    }
    process.kill().unwrap();
    process.wait().unwrap();
    panic!("it goes on");
}
