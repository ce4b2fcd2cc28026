//! ImgStore keeps photos by number in a hash table, and finds them by date through a B-tree (Isotope 4.1.1,
//! 4.3.3). The two stores are independent of each other, and ImgStore has no lock and no log: its changes to
//! both are one transaction.
//!
//! Each call follows one template, which [`ImgStore::add`] shows: begin, work, commit, retry. An [`Endpoint`]
//! decides where a store runs:
//!
//! - *libraries*: a [`Store`] in this process is called on the transaction itself;
//! - *threads*: a [`StoreThread`] takes over the transaction, and releases it again;
//! - *processes*: a [`RemoteStore`] does the same from process to process, with the transaction's
//!   handle in a message.

mod endpoint;
mod error;
pub mod process;
mod thread;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_store::tree::{Kind, NewPartition, Store, TreeError, catalogue};
use thalweg_store::txn::{Begin, Durability, Retry, Transact, Turn};

pub use endpoint::{Call, Endpoint, Txn};
pub use error::ImgError;
use process::RemoteStore;
pub use thread::StoreThread;

/// The partition of the hash table: number (64 bits) → date (64 bits), then the image.
pub const IMAGES: &str = "images";
/// The partition of the B-tree: date, number → nothing. Two photos may have one date.
pub const DATES: &str = "dates";

/// An image takes at least a block of [`IMAGES`], and some 40 bytes of [`DATES`].
const DATES_SHARE: u64 = 16;

/// A photo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Photo {
    /// When it was taken, in any unit that counts up.
    pub date: u64,
    /// The image file.
    pub image: Bytes,
}

/// Makes the two partitions on an empty volume.
///
/// # Errors
/// Those of [`catalogue::create`].
pub async fn create(env: &Env, volume: &dyn Transact) -> Result<(), TreeError> {
    let share = volume.blocks() / DATES_SHARE;
    for (name, kind, blocks) in [(DATES, Kind::Btree, Some(share)), (IMAGES, Kind::Hash, None)] {
        let new = NewPartition { name: name.to_owned(), kind, first: None, blocks };
        catalogue::create(env, volume, &new).await?;
    }
    Ok(())
}

/// Photos by number and by date. Clones are the same photos.
#[derive(Clone)]
pub struct ImgStore {
    volume: Arc<dyn Transact>,
    images: Arc<dyn Endpoint>,
    dates: Arc<dyn Endpoint>,
}

impl ImgStore {
    /// The photos of a volume, with its two stores behind endpoints.
    pub fn new(
        volume: Arc<dyn Transact>,
        images: Arc<dyn Endpoint>,
        dates: Arc<dyn Endpoint>,
    ) -> ImgStore {
        ImgStore { volume, images, dates }
    }

    /// Calls both stores in this process.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub async fn libraries(env: &Env, volume: Arc<dyn Transact>) -> Result<ImgStore, TreeError> {
        let images = Store::open_hash(env, volume.clone(), IMAGES).await?;
        let dates = Store::open_btree(env, volume.clone(), DATES).await?;
        Ok(ImgStore::new(volume, Arc::new(images), Arc::new(dates)))
    }

    /// With a thread for each store.
    ///
    /// # Errors
    /// Those of [`Store::open`], and [`ImgError::Gone`] when threads cannot be started.
    pub async fn threads(env: &Env, volume: Arc<dyn Transact>) -> Result<ImgStore, ImgError> {
        let images = Store::open_hash(env, volume.clone(), IMAGES).await?;
        let dates = Store::open_btree(env, volume.clone(), DATES).await?;
        let start = |store| StoreThread::start(env, store).map(Arc::new);
        let none = |error: io::Error| ImgError::Gone(error.to_string());
        Ok(ImgStore::new(volume, start(images).map_err(none)?, start(dates).map_err(none)?))
    }

    /// With each store in a process that serves it ([`process::serve`]). `folder` is the volume's.
    pub fn processes(volume: Arc<dyn Transact>, folder: &Path) -> ImgStore {
        let store = |partition| Arc::new(RemoteStore::new(volume.clone(), folder, partition));
        let (images, dates) = (store(IMAGES), store(DATES));
        ImgStore::new(volume, images, dates)
    }

    /// Adds or replaces the photo `id`. It is durable when this returns, under its number and its date.
    ///
    /// # Errors
    /// [`ImgError`]; nothing has changed then, unless the connection to the volume was lost.
    pub async fn add(&self, id: u64, photo: &Photo) -> Result<(), ImgError> {
        let value = encode(photo);
        retry(&*self.volume, |turn| async {
            let txn = self.volume.begin(Begin::STRICT).await?;
            let put = vec![Call::Get(key(id)), Call::Put(key(id), value.clone())];
            let (txn, old) = self.images.call(txn, put).await?;
            let mut index = unindex(id, &old)?;
            index.push(Call::Put(entry(photo.date, id), Bytes::new()));
            let (txn, _) = self.dates.call(txn, index).await?;
            turn.commit(&*txn, Durability::Synced).await?;
            Ok(())
        })
        .await
    }

    /// Removes the photo `id`; returns whether it was present.
    ///
    /// # Errors
    /// As [`ImgStore::add`].
    pub async fn remove(&self, id: u64) -> Result<bool, ImgError> {
        retry(&*self.volume, |turn| async {
            let txn = self.volume.begin(Begin::STRICT).await?;
            let take = vec![Call::Get(key(id)), Call::Delete(key(id))];
            let (txn, old) = self.images.call(txn, take).await?;
            let (txn, _) = self.dates.call(txn, unindex(id, &old)?).await?;
            turn.commit(&*txn, Durability::Synced).await?;
            Ok(!old.is_empty())
        })
        .await
    }

    /// The photo `id`.
    ///
    /// # Errors
    /// [`ImgError`].
    pub async fn get(&self, id: u64) -> Result<Option<Photo>, ImgError> {
        retry(&*self.volume, |_| async {
            let txn = self.volume.begin(Begin::READ_ONLY).await?;
            let (_, found) = self.images.call(txn, vec![Call::Get(key(id))]).await?;
            found.first().map(decode).transpose()
        })
        .await
    }

    /// Dates and numbers of the photos taken in a range of dates, the oldest first.
    ///
    /// # Errors
    /// [`ImgError`].
    pub async fn taken(&self, dates: Range<u64>) -> Result<Vec<(u64, u64)>, ImgError> {
        retry(&*self.volume, |_| async {
            let txn = self.volume.begin(Begin::READ_ONLY).await?;
            let range = Call::Range(entry(dates.start, 0), entry(dates.end, 0));
            let (_, found) = self.dates.call(txn, vec![range]).await?;
            found.iter().map(decode_entry).collect()
        })
        .await
    }
}

/// Repeats `attempt`, each time on a new transaction, until one commits or fails for good. An attempt that
/// fails drops its transaction, which aborts it.
///
/// [`thalweg_store::txn::run`] does the same for work that does not pass its transaction on.
async fn retry<T, Attempt>(
    volume: &dyn Transact,
    attempt: impl Fn(Turn) -> Attempt,
) -> Result<T, ImgError>
where
    Attempt: Future<Output = Result<T, ImgError>>,
{
    let mut turn = Turn::default();
    loop {
        match attempt(turn).await {
            Err(error) if error.is_retryable() => turn = volume.contention().turn().await,
            done => return done,
        }
    }
}

/// The call that removes the old photo from the index, if there was one.
fn unindex(id: u64, old: &[Bytes]) -> Result<Vec<Call>, ImgError> {
    old.iter().map(|value| Ok(Call::Delete(entry(decode(value)?.date, id)))).collect()
}

fn key(id: u64) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

fn entry(date: u64, id: u64) -> Bytes {
    Bytes::from([date.to_be_bytes(), id.to_be_bytes()].concat())
}

fn decode_entry(entry: &Bytes) -> Result<(u64, u64), ImgError> {
    match entry.as_chunks() {
        ([date, id], []) => Ok((u64::from_be_bytes(*date), u64::from_be_bytes(*id))),
        _ => Err(ImgError::Foreign(DATES)),
    }
}

fn encode(photo: &Photo) -> Bytes {
    Bytes::from([&photo.date.to_be_bytes(), &photo.image[..]].concat())
}

fn decode(value: &Bytes) -> Result<Photo, ImgError> {
    match value.split_first_chunk() {
        Some((date, image)) => {
            Ok(Photo { date: u64::from_be_bytes(*date), image: value.slice_ref(image) })
        }
        None => Err(ImgError::Foreign(IMAGES)),
    }
}
