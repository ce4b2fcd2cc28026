//! Making, opening and removing an image.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use thalweg_env::{Env, Time};
use thalweg_store::device::{Counters, DeviceError, Operation};
use tokio::sync::Semaphore;

use super::{Opening, RadosDevice, RadosOptions, Shared};
use crate::ObjectError;
use crate::fence::{Fence, LOCK, Taking, lock};
use crate::format::{HEADER, Header, data_number, header_name, is_of_files};
use crate::heartbeat::{Beat, Heart, Serving};
use crate::object::{Change, LockHolder, LockName, ObjectStore, ObjectStoreRef, Step};
use crate::opener::{Opener, shown};
use crate::striped::each;

impl RadosDevice {
    /// Makes an image of `size` bytes, which must be absent, and opens it. Its content is zeros.
    ///
    /// # Errors
    /// The device's error when an image of that name is present, or when the layout is invalid.
    pub async fn create(
        env: &Env,
        store: ObjectStoreRef,
        image: &str,
        size: u64,
        options: &RadosOptions,
    ) -> Result<RadosDevice, DeviceError> {
        RadosDevice::make(env, &store, image, size, options).await?;
        RadosDevice::open(env, store, image, Opening::Exclusive).await
    }

    /// As [`RadosDevice::create`], without opening it.
    ///
    /// # Errors
    /// As [`RadosDevice::create`].
    pub async fn make(
        env: &Env,
        store: &ObjectStoreRef,
        image: &str,
        size: u64,
        options: &RadosOptions,
    ) -> Result<(), DeviceError> {
        let RadosOptions { object_size, sector } = *options;
        let header = Header { identity: env.uuid(), size, object_size, sector, epoch: 0 };
        let created = create(&**store, image, &header).await;
        created.map_err(|error| error.of_device(&name(&**store, image), Operation::Create))
    }

    /// Whether there is an image of that name.
    ///
    /// # Errors
    /// The device's error when the cluster does not say.
    pub async fn exists(store: &ObjectStoreRef, image: &str) -> Result<bool, DeviceError> {
        match store.read(&header_name(image), 0, HEADER).await {
            Ok(_) => Ok(true),
            Err(ObjectError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.of_device(&name(&**store, image), Operation::Open)),
        }
    }

    /// The clients that have an image open, for messages.
    ///
    /// # Errors
    /// The device's error when the cluster does not say.
    pub async fn holders(store: &ObjectStoreRef, image: &str) -> Result<Vec<String>, DeviceError> {
        let holders = store.holders(&header_name(image), LOCK).await;
        let holders =
            holders.map_err(|error| error.of_device(&name(&**store, image), Operation::Open));
        Ok(holders?.iter().map(shown).collect())
    }

    /// Opens an image, takes its lock, and begins an epoch.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] while another client has it open and is not to be stopped, or while this client itself
    /// has it open; otherwise the device's error.
    pub async fn open(
        env: &Env,
        store: ObjectStoreRef,
        image: &str,
        opening: Opening,
    ) -> Result<RadosDevice, DeviceError> {
        RadosDevice::open_as(env, store, image, opening, None).await
    }

    /// As [`RadosDevice::open`], as a process that the lock names. Processes that `opener` knows to have ended are taken
    /// over from: the cluster refuses what they may have sent last, and their locks are broken.
    ///
    /// # Errors
    /// As [`RadosDevice::open`]; the error names the process that has it open.
    pub async fn open_as(
        env: &Env,
        store: ObjectStoreRef,
        image: &str,
        opening: Opening,
        opener: Option<&Opener>,
    ) -> Result<RadosDevice, DeviceError> {
        let how = How { opening, opener, silent: None, serving: None };
        RadosDevice::open_how(env, store, image, &how).await
    }

    /// As [`RadosDevice::open_as`], for a server or not.
    pub(crate) async fn open_how(
        env: &Env,
        store: ObjectStoreRef,
        image: &str,
        how: &How<'_>,
    ) -> Result<RadosDevice, DeviceError> {
        let &How { opening, opener, silent, serving } = how;
        let header_object = header_name(image);
        let cookie = cookie(env, opener);
        let stops = |holder: &LockHolder| {
            opening == Opening::TakeOver || silent == Some(holder) || ended(opener, holder)
        };
        let shared = !opening.writes();
        let taking = Taking { cookie: &cookie, shared, stops: &stops };
        let lease = serving.filter(|_| opening.writes()).map(|serving| serving.lease);
        let begun = match opening {
            Opening::Unlocked => read_header(&*store, &header_object).await.map(|it| (it, None)),
            _ => begin(env, &*store, &header_object, &taking, lease).await,
        };
        let (header, first) = match begun {
            Ok(begun) => begun,
            Err(error) => return Err(refused(&*store, image, error, Operation::Open).await),
        };
        let fence = Arc::new(Fence::new(header.epoch));
        let term = serving.zip(first.as_ref()).map(|(it, _)| Arc::new(it.tenure.term()));
        let beating = term.clone().zip(first).map(|(term, beat)| {
            let (env, store, header) = (env.clone(), store.clone(), header_object.clone());
            Heart { env, store, header, fence: fence.clone(), term }.beat(beat)
        });
        let shared = Shared {
            env: env.clone(),
            store,
            image: image.to_owned(),
            header,
            header_object,
            cookie,
            opening,
            fence,
            term,
            released: Arc::new(Semaphore::new(0)),
        };
        Ok(RadosDevice {
            shared: Arc::new(shared),
            size: AtomicU64::new(header.size),
            growing: tokio::sync::Mutex::new(()),
            counters: Counters::default(),
            _beating: beating,
        })
    }

    /// Removes an image: its objects, those with contents of files ([`RadosDevice::files`]), and then its header.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] while it is open.
    pub async fn remove(env: &Env, store: ObjectStoreRef, image: &str) -> Result<(), DeviceError> {
        RadosDevice::remove_as(env, store, image, None).await
    }

    /// As [`RadosDevice::remove`], as a process that the lock names.
    ///
    /// # Errors
    /// As [`RadosDevice::remove`]; the error names the process that has it open.
    pub async fn remove_as(
        env: &Env,
        store: ObjectStoreRef,
        image: &str,
        opener: Option<&Opener>,
    ) -> Result<(), DeviceError> {
        let cookie = cookie(env, opener);
        let stops = |holder: &LockHolder| ended(opener, holder);
        let taking = Taking { cookie: &cookie, shared: false, stops: &stops };
        match remove(&*store, image, &taking).await {
            Ok(()) => Ok(()),
            Err(error) => Err(refused(&*store, image, error, Operation::Discard).await),
        }
    }
}

/// How an image is opened.
pub(crate) struct How<'a> {
    pub(crate) opening: Opening,
    pub(crate) opener: Option<&'a Opener>,
    /// A holder of the lock that is silent, and is to be stopped.
    pub(crate) silent: Option<&'a LockHolder>,
    /// For a server, which writes beats.
    pub(crate) serving: Option<&'a Serving>,
}

/// The cookie of a new lock.
fn cookie(env: &Env, opener: Option<&Opener>) -> String {
    let unique = env.uuid();
    opener.map_or_else(|| unique.to_string(), |opener| opener.cookie(unique))
}

/// Whether the holder of a lock is a process that `opener` knows to have ended.
fn ended(opener: Option<&Opener>, holder: &LockHolder) -> bool {
    let other = Opener::of(holder);
    opener.zip(other).is_some_and(|(opener, other)| opener.knows_ended(&other))
}

/// The device's error for an image that could not be locked; it names the holders of the lock.
async fn refused(
    store: &dyn ObjectStore,
    image: &str,
    error: ObjectError,
    operation: Operation,
) -> DeviceError {
    let device = name(store, image);
    if !matches!(error, ObjectError::Locked { .. }) {
        return error.of_device(&device, operation);
    }
    let holders = store.holders(&header_name(image), LOCK).await.unwrap_or_default();
    let holders: Vec<String> = holders.iter().map(shown).collect();
    DeviceError::Locked { device, holder: (!holders.is_empty()).then(|| holders.join(", ")) }
}

fn name(store: &dyn ObjectStore, image: &str) -> String {
    format!("rados:{}/{image}", store.name())
}

async fn create(store: &dyn ObjectStore, image: &str, header: &Header) -> Result<(), ObjectError> {
    let object = header_name(image);
    let path = format!("{}/{object}", store.name());
    let valid = header.check();
    valid.map_err(|error| ObjectError::Invalid { object: path, reason: error.to_string() })?;
    let change = Change::new().then(Step::CreateNew).then(Step::Replace { data: header.encode() });
    store.apply(&object, change).await
}

/// Takes the lock. If it is not shared, writes the next epoch into the header, and with a lease the first beat. Returns
/// the header, and that beat with the time when it was sent.
async fn begin(
    env: &Env,
    store: &dyn ObjectStore,
    object: &str,
    taking: &Taking<'_>,
    lease: Option<Duration>,
) -> Result<(Header, Option<(Beat, Time)>), ObjectError> {
    let cookie = taking.cookie;
    // The lock would make an absent object.
    read_header(store, object).await?;
    lock(store, object, taking).await?;
    let begun = async {
        let header = read_header(store, object).await?;
        if taking.shared {
            return Ok((header, None));
        }
        let header = Header { epoch: header.epoch + 1, ..header };
        let fence = Fence::new(header.epoch);
        let first = lease.map(|lease| Beat::first(header.epoch, lease, cookie));
        let sent = env.now();
        let steps: Vec<Step> = first.iter().map(Beat::step).collect();
        fence.replace_locked(store, object, cookie, header.encode(), &steps).await?;
        Ok((header, first.map(|beat| (beat, sent))))
    };
    let begun = begun.await;
    if begun.is_err() {
        // The first error is the one to report.
        let released = store.unlock(object, &LockName { name: LOCK, cookie }).await;
        tracing::debug!(object, ?released, "an opening failed");
    }
    begun
}

async fn read_header(store: &dyn ObjectStore, object: &str) -> Result<Header, ObjectError> {
    let bytes = store.read(object, 0, HEADER + 1).await?;
    Header::decode(&bytes).map_err(|error| {
        let object = format!("{}/{object}", store.name());
        let source = io::Error::new(io::ErrorKind::InvalidData, error);
        ObjectError::Io { object, source: Arc::new(source) }
    })
}

async fn remove(
    store: &dyn ObjectStore,
    image: &str,
    taking: &Taking<'_>,
) -> Result<(), ObjectError> {
    let header = header_name(image);
    read_header(store, &header).await?;
    lock(store, &header, taking).await?;
    let names = store.list().await?;
    let is_part = |name: &String| data_number(image, name).is_some() || is_of_files(image, name);
    let removals = names.into_iter().filter(is_part).map(|object| async move {
        match store.apply(&object, Change::new().then(Step::Remove)).await {
            Err(ObjectError::NotFound { .. }) => Ok(()),
            outcome => outcome,
        }
    });
    each(removals).await?;
    let locked = Step::AssertLocked { lock: LOCK.to_owned(), cookie: taking.cookie.to_owned() };
    store.apply(&header, Change::new().then(locked).then(Step::Remove)).await
}
