//! Mirrors that lose sides, and get them back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_sim::conformance;
use thalweg_store::device::{
    Device, DeviceError, Mirror, MirrorError, Power, Purpose, Role, Side, SideState, SyncRecord,
};

use crate::common::{FaultyDevice, for_random_requests};

const SIZE: u64 = 1 << 20;

/// Records its calls, and can delay or refuse them.
#[derive(Default)]
struct Record {
    told: Mutex<Vec<Vec<bool>>>,
    gate: tokio::sync::Mutex<()>,
    refuse: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl SyncRecord for Record {
    async fn record(&self, in_sync: &[bool]) -> Result<(), DeviceError> {
        let _gate = self.gate.lock().await;
        if self.refuse.load(Relaxed) {
            return Err(DeviceError::Closed { device: "record".to_owned() });
        }
        self.told.lock().push(in_sync.to_vec());
        Ok(())
    }
}

struct Pair {
    sides: [Arc<FaultyDevice>; 2],
    record: Arc<Record>,
    mirror: Mirror,
}

fn pair(size: u64, yields: usize, standby: bool) -> Pair {
    let sides = [FaultyDevice::slow(size, yields), FaultyDevice::slow(size, yields)];
    let record = Arc::new(Record::default());
    let both = sides.iter().map(|side| Side::InSync(side.clone())).collect();
    let mirror = Mirror::new(&Env::real(), both, record.clone(), standby).unwrap();
    Pair { sides, record, mirror }
}

impl Pair {
    async fn write(&self, at: u64, fill: u8) -> Result<(), DeviceError> {
        self.mirror.write(at, vec![Bytes::from(vec![fill; 4096])], Purpose::UserData).await
    }

    async fn read(&self, at: u64) -> u8 {
        self.mirror.read(at, 4096, Purpose::UserData).await.unwrap()[0]
    }

    fn states(&self) -> Vec<SideState> {
        self.mirror.states().borrow().clone()
    }
}

#[tokio::test]
async fn a_failed_write_or_flush_puts_a_side_out() {
    for flush in [false, true] {
        let pair = pair(SIZE, 0, false);
        pair.sides[0].fail_writes.store(!flush, Relaxed);
        pair.sides[0].fail_flushes.store(flush, Relaxed);
        pair.write(0, 1).await.unwrap();
        pair.mirror.flush(Purpose::UserData).await.unwrap();
        assert_eq!(pair.states(), [SideState::Failed, SideState::InSync]);
        assert_eq!(*pair.record.told.lock(), [[false, true]]);
        // It misses this one, and is not read.
        pair.write(0, 2).await.unwrap();
        assert_eq!(pair.read(0).await, 2);
        assert_ne!(pair.sides[0].content().await[0], 2);
        assert!(pair.mirror.read_copy(0, 0, 512, Purpose::UserData).await.is_err());
        // The last side fails requests, and is kept.
        pair.sides[1].fail_writes.store(true, Relaxed);
        assert!(pair.write(0, 3).await.is_err());
        assert_eq!(pair.read(0).await, 2);
    }
}

#[tokio::test]
async fn a_write_that_fails_everywhere_puts_nobody_out() {
    let pair = pair(SIZE, 0, false);
    pair.sides.iter().for_each(|side| side.fail_writes.store(true, Relaxed));
    assert!(pair.write(0, 1).await.is_err());
    assert_eq!(pair.states(), [SideState::InSync; 2]);
}

#[tokio::test]
async fn nothing_is_acknowledged_before_the_failure_is_recorded() {
    let pair = pair(SIZE, 0, false);
    let gate = pair.record.gate.lock().await;
    pair.sides[1].fail_writes.store(true, Relaxed);
    let mut missed = Box::pin(pair.write(0, 1));
    let mut later = Box::pin(pair.write(8192, 2));
    for _ in 0..50 {
        assert!(futures::poll!(&mut missed).is_pending());
        assert!(futures::poll!(&mut later).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(pair.states(), [SideState::InSync, SideState::Failed]);
    assert_eq!(pair.sides[0].content().await[8192], 2);
    drop(gate);
    missed.await.unwrap();
    later.await.unwrap();
    assert_eq!(*pair.record.told.lock(), [[true, false]]);
}

#[tokio::test]
async fn a_failure_that_cannot_be_recorded_fails_writes_until_it_can() {
    let pair = pair(SIZE, 0, false);
    pair.record.refuse.store(true, Relaxed);
    pair.sides[1].fail_writes.store(true, Relaxed);
    assert!(pair.write(0, 1).await.is_err());
    assert!(pair.mirror.flush(Purpose::UserData).await.is_err());
    pair.record.refuse.store(false, Relaxed);
    pair.write(0, 1).await.unwrap();
    assert_eq!(*pair.record.told.lock(), [[true, false]]);
}

#[tokio::test]
async fn an_unreadable_range_is_repaired_from_the_other_side() {
    let pair = pair(SIZE, 0, false);
    pair.write(4096, 7).await.unwrap();
    *pair.sides[0].unreadable.lock() = 4096..4608;
    *pair.sides[1].unreadable.lock() = 0..0;
    for _ in 0..3 {
        assert_eq!(pair.read(4096).await, 7);
    }
    assert_eq!(pair.states(), [SideState::InSync; 2]);
    let copy = pair.mirror.read_copy(0, 4096, 4096, Purpose::UserData).await.unwrap();
    assert_eq!(copy[0], 7);
    // A side that stays unreadable is put out, and that is recorded.
    pair.sides[0].writing_heals.store(false, Relaxed);
    *pair.sides[0].unreadable.lock() = 4096..4608;
    assert_eq!(pair.mirror.read(0, 8192, Purpose::UserData).await.unwrap()[4096], 7);
    assert_eq!(pair.states(), [SideState::Failed, SideState::InSync]);
    assert_eq!(*pair.record.told.lock(), [[false, true]]);
}

#[tokio::test]
async fn a_wrong_copy_is_read_and_repaired_alone() {
    let pair = pair(SIZE, 0, false);
    pair.write(0, 1).await.unwrap();
    pair.sides[1].write(0, vec![Bytes::from(vec![9; 4096])], Purpose::UserData).await.unwrap();
    assert_eq!(pair.mirror.copies(), 2);
    let right = pair.mirror.read_copy(0, 0, 4096, Purpose::UserData).await.unwrap();
    let wrong = pair.mirror.read_copy(1, 0, 4096, Purpose::UserData).await.unwrap();
    assert_eq!((right[0], wrong[0]), (1, 9));
    pair.mirror.repair_copy(1, 0, right).await.unwrap();
    assert_eq!(pair.sides[1].content().await[0], 1);
    assert!(pair.mirror.read_copy(2, 0, 4096, Purpose::UserData).await.is_err());
}

#[tokio::test]
async fn overlapping_writes_leave_the_sides_equal() {
    for round in 0..20 {
        let pair = pair(SIZE, 0, false);
        pair.sides[round % 2].yields.store(round, Relaxed);
        futures::future::join_all((0..16).map(|i| pair.write(i % 3 * 2048, i as u8))).await;
        assert_eq!(pair.sides[0].content().await, pair.sides[1].content().await);
    }
}

#[tokio::test]
async fn an_abandoned_write_reaches_every_side() {
    let pair = pair(SIZE, 3, false);
    let mut write = Box::pin(pair.write(0, 1));
    assert!(futures::poll!(&mut write).is_pending());
    drop(write);
    pair.write(2048, 2).await.unwrap();
    for side in &pair.sides {
        let content = side.content().await;
        assert_eq!((content[0], content[2048]), (1, 2));
    }
}

#[tokio::test]
async fn reads_are_spread_over_the_shorter_queues() {
    let pair = pair(SIZE, 2, false);
    let reads = (0..40).map(|i| pair.read(i * 4096));
    futures::future::join_all(reads).await;
    let reads = pair.sides.each_ref().map(|side| side.tallies().total().reads);
    assert_eq!(reads.iter().sum::<u64>(), 40);
    assert!(reads.iter().all(|reads| *reads >= 10), "{reads:?}");
}

#[test]
fn a_mirror_that_is_being_rebuilt_agrees_with_the_model() {
    for_random_requests(10, async |requests| {
        let size = 5 << 19;
        let pair = pair(size, 1, false);
        let rebuilder = pair.mirror.clone();
        let rebuilds = async {
            for side in [1, 0, 1, 0] {
                let junk = FaultyDevice::slow(size, 2);
                let bytes = Bytes::from(vec![0xdd; size as usize]);
                junk.write(0, vec![bytes], Purpose::UserData).await.unwrap();
                rebuilder.take_out(side).await.unwrap();
                rebuilder.replace(side, junk).unwrap();
                rebuilder.rebuild(side).await.unwrap();
            }
        };
        let (model, ()) = futures::join!(conformance::run(&pair.mirror, requests), rebuilds);
        for copy in 0..2 {
            let purpose = Purpose::UserData;
            let content = pair.mirror.read_copy(copy, 0, size as usize, purpose).await.unwrap();
            model.check(0, &content);
        }
    });
}

#[tokio::test]
async fn a_write_that_races_the_copier_is_not_lost() {
    let size = 3 << 20;
    for delay in 0..12 {
        let pair = pair(size, 4, false);
        pair.mirror.take_out(1).await.unwrap();
        let writes = async {
            for _ in 0..delay {
                tokio::task::yield_now().await;
            }
            // Inside chunks, and across their borders.
            let at = (0..48_u64).map(|i| i * 65536 - if i % 16 == 0 && i > 0 { 2048 } else { 0 });
            let all = at.map(|at| pair.write(at, 7));
            assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
        };
        let (rebuilt, ()) = futures::join!(pair.mirror.rebuild(1), writes);
        rebuilt.unwrap();
        assert_eq!(pair.sides[0].content().await, pair.sides[1].content().await);
    }
}

#[tokio::test]
async fn a_rebuild_shows_progress_and_is_recorded_before_the_side_is_read() {
    let size = 4 << 20;
    let pair = pair(size, 1, false);
    let mut states = pair.mirror.states();
    pair.mirror.take_out(0).await.unwrap();
    let gate = pair.record.gate.lock().await;
    let mut rebuild = Box::pin(pair.mirror.rebuild(0));
    let mut seen = Vec::new();
    for _ in 0..200 {
        assert!(futures::poll!(&mut rebuild).is_pending());
        if states.has_changed().unwrap()
            && let SideState::Rebuilding { done, total } = states.borrow_and_update()[0]
        {
            assert_eq!(total, size);
            seen.push(done);
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.last(), Some(&size));
    assert!(seen.len() >= 4 && seen.is_sorted());
    assert!(pair.mirror.read_copy(0, 0, 512, Purpose::UserData).await.is_err());
    drop(gate);
    rebuild.await.unwrap();
    assert_eq!(*pair.record.told.lock(), [[false, true], [true, true]]);
    assert_eq!(pair.states(), [SideState::InSync; 2]);
    assert!(pair.sides[0].tallies().of(Purpose::Repair).flushes > 0);
}

#[tokio::test]
async fn a_rebuild_that_is_given_up_or_fails_leaves_the_side_out() {
    let pair = pair(4 << 20, 1, false);
    pair.mirror.take_out(1).await.unwrap();
    let mut rebuild = Box::pin(pair.mirror.rebuild(1));
    for _ in 0..10 {
        assert!(futures::poll!(&mut rebuild).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(matches!(pair.mirror.rebuild(1).await, Err(MirrorError::NotOut { .. })));
    drop(rebuild);
    assert_eq!(pair.states()[1], SideState::Stale);
    pair.sides[1].fail_writes.store(true, Relaxed);
    assert!(pair.mirror.rebuild(1).await.is_err());
    assert_eq!(pair.states()[1], SideState::Failed);
    pair.sides[1].fail_writes.store(false, Relaxed);
    *pair.sides[0].unreadable.lock() = 3 << 20..(3 << 20) + 512;
    assert!(pair.mirror.rebuild(1).await.is_err());
    assert_eq!(pair.states(), [SideState::InSync, SideState::Stale]);
    *pair.sides[0].unreadable.lock() = 0..0;
    pair.mirror.rebuild(1).await.unwrap();
    assert_eq!(pair.states(), [SideState::InSync; 2]);
}

#[tokio::test]
async fn second_sides_rest_in_the_body_alone() {
    let pair = pair(SIZE, 0, true);
    let power = || pair.sides.each_ref().map(|side| *side.power.lock());
    pair.mirror.set_role(Role::Body).await;
    assert_eq!(power(), [Power::Active, Power::Standby]);
    futures::future::join_all((0..20).map(|i| pair.read(i * 4096))).await;
    assert_eq!(pair.sides[1].tallies().total().reads, 0);
    // The rest wakes when the first side goes.
    pair.mirror.take_out(0).await.unwrap();
    assert_eq!(power()[1], Power::Active);
    assert_eq!(pair.read(0).await, 0);
    pair.mirror.rebuild(0).await.unwrap();
    pair.mirror.set_role(Role::Tail).await;
    assert_eq!(power(), [Power::Active; 2]);
    let pair = self::pair(SIZE, 0, false);
    pair.mirror.set_role(Role::Body).await;
    assert_eq!(*pair.sides[1].power.lock(), Power::Active);
}

#[tokio::test]
async fn sides_that_do_not_fit_are_refused() {
    let env = Env::real();
    let device = |size| FaultyDevice::new(size) as Arc<dyn Device>;
    let make = |sides| Mirror::new(&env, sides, Arc::new(()), false);
    let one = make(vec![Side::InSync(device(SIZE))]);
    assert!(matches!(one, Err(MirrorError::TooFewSides { .. })));
    let none = make(vec![Side::Stale(device(SIZE)), Side::Missing]);
    assert!(matches!(none, Err(MirrorError::NoneInSync)));
    let small = make(vec![Side::InSync(device(SIZE)), Side::Stale(device(SIZE / 2))]);
    assert!(matches!(small, Err(MirrorError::DoesNotFit { .. })));
    let mirror = make(vec![Side::InSync(device(SIZE)), Side::Missing]).unwrap();
    assert!(matches!(mirror.take_out(0).await, Err(MirrorError::LastInSync { side: 0 })));
    assert!(matches!(mirror.replace(0, device(SIZE)), Err(MirrorError::NotOut { .. })));
    assert!(matches!(mirror.rebuild(7).await, Err(MirrorError::NoSuchSide { side: 7 })));
    mirror.replace(1, device(SIZE + 4096)).unwrap();
    mirror.rebuild(1).await.unwrap();
}
