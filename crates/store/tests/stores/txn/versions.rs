//! The versions that transactions read and become.

use thalweg_store::block::{Epoch, EpochVersion, Retention, Version, WriteList};

use super::*;

fn named(version: u64) -> EpochVersion {
    EpochVersion { version: Version(version), ..EpochVersion::default() }
}

#[test]
fn a_transaction_says_which_version_it_reads_and_which_it_became() {
    run(1, |env| async move {
        let rig = rig(&env);
        rig.put(1, 1).await;
        let reader = rig.begin(Begin::STRICT).await;
        let (one, two) = (rig.begin(Begin::STRICT).await, rig.begin(Begin::STRICT).await);
        assert_eq!((reader.version(), one.version()), (named(1), named(1)));
        one.write(Lba(1), block(2)).unwrap();
        two.write(Lba(2), block(3)).unwrap();
        assert_eq!(one.commit(Durability::Visible).await.unwrap(), named(2));
        assert_eq!(two.commit(SYNCED).await.unwrap(), named(3));
        assert_eq!(rig.begin(Begin::STRICT).await.version(), named(3));
        // Without writes it is the version that it read.
        assert_eq!(reader.commit(Durability::Visible).await.unwrap(), named(1));
        assert_eq!(rig.begin(Begin::READ_ONLY).await.commit(SYNCED).await.unwrap(), named(3));
        let syncs = rig.store.syncs();
        assert_eq!(Transact::sync(&rig.manager).await.unwrap(), named(3));
        assert_eq!(rig.store.syncs(), syncs + 1);
    });
}

#[test]
fn a_read_only_transaction_may_begin_at_a_version_that_is_kept() {
    run(1, |env| async move {
        let rig = rig(&env);
        rig.put(1, 1).await;
        let held = rig.begin(Begin::STRICT).await;
        rig.put(1, 2).await;
        rig.put(1, 3).await;
        let at = rig.begin(Begin::at(held.version())).await;
        held.abort().await;
        assert_eq!(at.read(Lba(1)).await.unwrap()[0], 1);
        assert!(matches!(at.write(Lba(1), block(9)), Err(TxnError::Invalid(_))));
        assert_eq!(at.commit(SYNCED).await.unwrap(), named(1));
        assert_eq!(rig.begin(Begin::at(named(3))).await.read(Lba(1)).await.unwrap()[0], 3);
        let lost = EpochVersion { epoch: Epoch(9), ..named(3) };
        for gone in [named(1), named(2), named(7), lost] {
            let begun = Transact::begin(&rig.manager, Begin::at(gone)).await;
            assert!(matches!(begun, Err(TxnError::Gone(version)) if version == gone));
        }
    });
}

/// Takes a while for each change, so that writers queue up behind one that applies for all.
#[derive(Debug)]
struct Slow(Env);

#[async_trait]
impl Around for Slow {
    async fn before_change(&self, _change: Change<'_>) -> Result<(), StoreError> {
        self.0.sleep(Duration::from_micros(5)).await;
        Ok(())
    }
}

#[test]
fn a_write_that_asks_for_a_hold_has_it_from_its_commit_on() {
    run(2, |env| async move {
        let memory = Arc::new(VersionedMemory::new(BLOCKS));
        let store = Arc::new(Passing::new(memory, Slow(env.clone())));
        let manager = TransactionManager::new(&env, store, Options::default());
        // Writes outside of transactions are commits while one runs.
        let running = manager.begin(Begin::STRICT).await.unwrap();
        let writes = (0..8u8).map(|byte| {
            let manager = manager.clone();
            env.spawn(async move {
                let write = Write::block(Lba(1), block(byte));
                let writes = WriteList::new(vec![write]).unwrap();
                let (version, hold, _) =
                    manager.submit(writes, Retention::Hold).await.unwrap().into_parts();
                let hold = hold.expect("the version is held");
                assert_eq!(hold.version(), version);
                let read = manager.read(Lba(1), 1, version).await.unwrap();
                assert_eq!(read[0].as_ref().map(|content| content[0]), Some(byte));
            })
        });
        for write in join_all(writes).await {
            write.unwrap();
        }
        drop(running);
    });
}
