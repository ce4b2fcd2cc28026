//! The files that a client has open.

use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet, Time};
use thalweg_fs::{FsError, Handle, Ino, OpenFlags};

#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct OpenFile {
    pub(in crate::server) ino: Ino,
    pub(in crate::server) flags: OpenFlags,
    /// Its handle in the filesystem. The client's handle outlives the server.
    pub(in crate::server) at: Handle,
    pub(in crate::server) since: Time,
    /// When a lock was last taken through it here.
    pub(in crate::server) locked: Option<Time>,
}

/// The open files of a session, by the client's handles; `None` when the session has ended.
#[derive(Debug)]
pub(in crate::server) struct Handles(Mutex<Option<HashMap<Handle, OpenFile>>>);

impl Default for Handles {
    fn default() -> Handles {
        Handles(Mutex::new(Some(HashMap::default())))
    }
}

impl Handles {
    /// The file behind a handle. [`FsError::Stale`] if that is not one of this session, or of another inode.
    pub(in crate::server) fn get(&self, handle: Handle, ino: Ino) -> Result<OpenFile, FsError> {
        match self.0.lock().as_ref().and_then(|open| open.get(&handle)) {
            Some(file) if file.ino == ino => Ok(*file),
            _ => Err(FsError::Stale),
        }
    }

    pub(in crate::server) fn contains(&self, handle: Handle) -> bool {
        self.0.lock().as_ref().is_some_and(|open| open.contains_key(&handle))
    }

    /// The client has a file open under this handle. Returns one that it had opened under it before, or this one if the session
    /// has ended.
    #[must_use = "it is to be closed"]
    pub(in crate::server) fn open(&self, handle: Handle, file: OpenFile) -> Option<OpenFile> {
        match self.0.lock().as_mut() {
            Some(open) => open.insert(handle, file),
            None => Some(file),
        }
    }

    #[must_use = "it is to be closed"]
    pub(in crate::server) fn close(&self, handle: Handle) -> Option<OpenFile> {
        self.0.lock().as_mut()?.remove(&handle)
    }

    #[must_use = "they are to be closed"]
    pub(in crate::server) fn close_all(&self, inodes: &HashSet<Ino>) -> Vec<OpenFile> {
        let mut open = self.0.lock();
        let open = open.iter_mut();
        let closed = open.flat_map(|it| it.extract_if(|_, file| inodes.contains(&file.ino)));
        closed.map(|(_, file)| file).collect()
    }

    /// A lock was taken through an open file, whose handle in the filesystem is `at`; whether it is open still, and the session
    /// goes on.
    pub(in crate::server) fn locked(&self, at: Handle, now: Time) -> (bool, bool) {
        let mut open = self.0.lock();
        let Some(open) = open.as_mut() else { return (false, false) };
        let file = open.values_mut().find(|file| file.at == at);
        (file.map(|file| file.locked = Some(now)).is_some(), true)
    }

    pub(in crate::server) fn of(&self, ino: Ino) -> Vec<OpenFile> {
        let open = self.0.lock();
        let files = open.iter().flat_map(HashMap::values);
        files.filter(|file| file.ino == ino).copied().collect()
    }

    pub(in crate::server) fn len(&self) -> usize {
        self.0.lock().as_ref().map_or(0, HashMap::len)
    }

    /// The client has nothing open any more: what it had.
    #[must_use = "they are to be closed"]
    pub(in crate::server) fn take(&self) -> Vec<OpenFile> {
        let mut open = self.0.lock();
        open.as_mut().into_iter().flat_map(HashMap::drain).map(|(_, file)| file).collect()
    }

    /// The session ends, once: what the client had open.
    pub(super) fn end(&self) -> Vec<OpenFile> {
        self.0.lock().take().into_iter().flat_map(HashMap::into_values).collect()
    }
}
