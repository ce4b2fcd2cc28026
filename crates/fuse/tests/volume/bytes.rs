//! Any byte range of a volume, against a plain array.

use bytes::Bytes;
use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_fuse::bytes::{ByteVolume, Seek};
use thalweg_store::block::StoreError;
use thalweg_store::volume::{Extent, Volume};

use crate::common::MemoryVolume;

const SIZE: u64 = 16 * 4096;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Zero(u64, u64, bool),
    Punch(u64, u64),
    Read(u64, usize),
    Seek(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..SIZE, 0..3 * 4096u64).prop_map(|(at, len)| (at, len.min(SIZE - at)));
    let aligned = (0..SIZE / 512, 1..16u64)
        .prop_map(|(at, len)| (at * 512, (len * 512).min(SIZE - at * 512)));
    let range = prop_oneof![range, aligned];
    prop_oneof![
        (range.clone(), 1..=255u8).prop_map(|((at, len), fill)| Step::Write(
            at,
            len as usize,
            fill
        )),
        (range.clone(), any::<bool>()).prop_map(|((at, len), keep)| Step::Zero(at, len, keep)),
        range.clone().prop_map(|(at, len)| Step::Punch(at, len)),
        range.prop_map(|(at, len)| Step::Read(at, len as usize)),
        (0..SIZE).prop_map(Step::Seek),
    ]
}

async fn check(steps: Vec<Step>) {
    let bytes = ByteVolume::new(MemoryVolume::new(SIZE));
    let mut model = vec![0u8; SIZE as usize];
    for step in steps {
        match step {
            Step::Write(at, len, fill) => {
                bytes.write(at, Bytes::from(vec![fill; len]), false).await.unwrap();
                model[at as usize..at as usize + len].fill(fill);
            }
            Step::Zero(at, len, keep) => {
                bytes.zero(at, len, keep).await.unwrap();
                model[at as usize..(at + len) as usize].fill(0);
            }
            Step::Punch(at, len) => {
                bytes.punch(at, len).await.unwrap();
                model[at as usize..(at + len) as usize].fill(0);
            }
            Step::Read(at, len) => {
                let read = bytes.read(at, len).await.unwrap();
                assert_eq!(read, model[at as usize..at as usize + len]);
            }
            Step::Seek(at) => {
                // Unallocated bytes are zero; no other bytes are skipped.
                let end = bytes.seek(at, Seek::Data).await.unwrap().unwrap_or(SIZE);
                assert!(end >= at && model[at as usize..end as usize].iter().all(|b| *b == 0));
                let hole = bytes.seek(at, Seek::Hole).await.unwrap().unwrap();
                assert!(hole >= at && (hole == at || end == at));
            }
        }
    }
    assert_eq!(bytes.read(0, SIZE as usize).await.unwrap(), model);
}

proptest! {
    #[test]
    fn bytes_are_what_an_array_says(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(steps));
    }
}

#[tokio::test]
async fn writers_of_one_block_do_not_lose_each_others_bytes() {
    let env = Env::real();
    let bytes = std::sync::Arc::new(ByteVolume::new(Slow::over(SIZE)));
    let tasks: Vec<_> = (0..64u64)
        .map(|at| {
            let bytes = bytes.clone();
            env.spawn(async move {
                bytes.write(at * 8, Bytes::from(vec![at as u8 + 1; 8]), false).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let read = bytes.read(0, 512).await.unwrap();
    for (at, byte) in read.iter().enumerate() {
        assert_eq!(usize::from(*byte), at / 8 + 1, "byte {at}");
    }
}

/// A volume that yields between everything, so that tasks interleave.
#[derive(Debug)]
struct Slow(std::sync::Arc<MemoryVolume>);

impl Slow {
    fn over(size: u64) -> std::sync::Arc<Slow> {
        std::sync::Arc::new(Slow(MemoryVolume::new(size)))
    }
}

#[async_trait::async_trait]
impl Volume for Slow {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, StoreError> {
        let read = self.0.read(offset, len).await;
        tokio::task::yield_now().await;
        read
    }
    async fn write_vectored(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        fua: bool,
    ) -> Result<(), StoreError> {
        tokio::task::yield_now().await;
        self.0.write_vectored(offset, data, fua).await
    }
    async fn write_zeroes(&self, o: u64, l: u64, k: bool, f: bool) -> Result<(), StoreError> {
        self.0.write_zeroes(o, l, k, f).await
    }
    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<(), StoreError> {
        self.0.trim(offset, len, fua).await
    }
    async fn flush(&self) -> Result<(), StoreError> {
        self.0.flush().await
    }
    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, StoreError> {
        self.0.extents(offset, len).await
    }
}
