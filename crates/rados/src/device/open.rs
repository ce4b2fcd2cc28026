//! Making, opening and removing an image.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use thalweg_env::Env;
use thalweg_store::device::{Counters, DeviceError, Operation};

use super::{Opening, RadosDevice, RadosOptions, Shared};
use crate::ObjectError;
use crate::fence::{Fence, LOCK, lock};
use crate::format::{HEADER, Header, data_name, data_number, header_name};
use crate::object::{Change, LockName, ObjectStore, ObjectStoreRef, Step};
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
        let RadosOptions { object_size, sector } = *options;
        let header = Header { identity: env.uuid(), size, object_size, sector, epoch: 0 };
        let created = create(&*store, image, &header).await;
        created.map_err(|error| error.of_device(&name(&*store, image), Operation::Create))?;
        RadosDevice::open(env, store, image, Opening::Exclusive).await
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
        let name = name(&*store, image);
        let header_object = header_name(image);
        let cookie = env.uuid().to_string();
        let opened = begin(&*store, &header_object, &cookie, opening).await;
        let header = opened.map_err(|error| error.of_device(&name, Operation::Open))?;
        let shared = Shared {
            env: env.clone(),
            store,
            image: image.to_owned(),
            header,
            header_object,
            cookie,
            fence: Fence::new(header.epoch),
            closed: AtomicBool::new(false),
        };
        Ok(RadosDevice {
            shared: Arc::new(shared),
            size: AtomicU64::new(header.size),
            growing: tokio::sync::Mutex::new(()),
            counters: Counters::default(),
        })
    }

    /// Removes an image: its objects, and then its header.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] while it is open.
    pub async fn remove(env: &Env, store: ObjectStoreRef, image: &str) -> Result<(), DeviceError> {
        let cookie = env.uuid().to_string();
        let removed = remove(&*store, image, &cookie).await;
        removed.map_err(|error| error.of_device(&name(&*store, image), Operation::Discard))
    }
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

/// Takes the lock, and writes the next epoch into the header; the header with it.
async fn begin(
    store: &dyn ObjectStore,
    object: &str,
    cookie: &str,
    opening: Opening,
) -> Result<Header, ObjectError> {
    // The lock would make an absent object.
    read_header(store, object).await?;
    lock(store, object, cookie, opening == Opening::TakeOver).await?;
    let begun = async {
        let header = read_header(store, object).await?;
        let header = Header { epoch: header.epoch + 1, ..header };
        let fence = Fence::new(header.epoch);
        fence.replace_locked(store, object, cookie, header.encode()).await?;
        Ok(header)
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

async fn remove(store: &dyn ObjectStore, image: &str, cookie: &str) -> Result<(), ObjectError> {
    let header = header_name(image);
    read_header(store, &header).await?;
    lock(store, &header, cookie, false).await?;
    let names = store.list().await?;
    let numbers = names.iter().filter_map(|name| data_number(image, name));
    let removals = numbers.map(|number| async move {
        let object = data_name(image, number);
        match store.apply(&object, Change::new().then(Step::Remove)).await {
            Err(ObjectError::NotFound { .. }) => Ok(()),
            outcome => outcome,
        }
    });
    each(removals).await?;
    let locked = Step::AssertLocked { lock: LOCK.to_owned(), cookie: cookie.to_owned() };
    store.apply(&header, Change::new().then(locked).then(Step::Remove)).await
}
