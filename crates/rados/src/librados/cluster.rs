//! The connection to a cluster.

use std::ffi::CString;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::handles::{Connection, closed};
use super::pool::Pool;
use super::{c_string, check, sys};
use crate::ObjectError;

/// Where the cluster is, as which client to connect, and how long to wait for answers.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The configuration file; `None` for where Ceph looks for it.
    pub conf: Option<PathBuf>,
    /// The client's name without `client.`.
    pub id: String,
    /// The file with the client's key, in place of what the configuration says.
    pub keyring: Option<PathBuf>,
    /// How long to wait for a monitor.
    pub connect_timeout: Duration,
    /// How long to wait for the end of a request. Ceph takes some 20 s to replace an object server that died.
    pub request_timeout: Duration,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            conf: None,
            id: "admin".to_owned(),
            keyring: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
        }
    }
}

/// A connection to a cluster. Clones share it; it is closed when the last of them, the last pool and the last request
/// have gone.
#[derive(Clone, Debug)]
pub struct Cluster {
    connection: Arc<Connection>,
}

impl Cluster {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// [`ObjectError::NotConnected`] when no monitor answers in time, [`ObjectError::NotPermitted`] when none knows
    /// the key, [`ObjectError::Invalid`] when the configuration cannot be read.
    pub async fn connect(options: &ClusterOptions) -> Result<Cluster, ObjectError> {
        let options = options.clone();
        let connected = tokio::task::spawn_blocking(move || Cluster::connect_now(&options)).await;
        connected.unwrap_or_else(|_| Err(closed()))
    }

    fn connect_now(options: &ClusterOptions) -> Result<Cluster, ObjectError> {
        let client = format!("client.{}", options.id);
        let id = c_string(&client, &options.id)?;
        let mut handle = ptr::null_mut();
        // SAFETY: `id` outlives the call, which copies it, and `handle` is written on success.
        check(&client, unsafe { sys::rados_create(&mut handle, id.as_ptr()) })?;
        let connection = Connection::of(handle);
        configure(&connection, options)?;
        // SAFETY: the handle was created and is not connected yet.
        let returned = unsafe { sys::rados_connect(connection.handle()) };
        check("cluster", returned).map_err(|error| match error {
            ObjectError::NoAnswer { .. } => ObjectError::NotConnected {
                reason: format!(
                    "no monitor answered in {} s; see mon_host in the configuration",
                    options.connect_timeout.as_secs_f64()
                ),
            },
            ObjectError::NotFound { .. } => ObjectError::NotConnected {
                reason: format!("{client} has no key here; see keyring"),
            },
            other => other,
        })?;
        Ok(Cluster { connection: Arc::new(connection) })
    }

    /// Opens a pool, and in it a namespace; the empty one is the default.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] when there is no such pool.
    pub async fn pool(&self, name: &str, namespace: &str) -> Result<Pool, ObjectError> {
        let (connection, name) = (self.connection.clone(), name.to_owned());
        let namespace = namespace.to_owned();
        let opened =
            tokio::task::spawn_blocking(move || Pool::open(&connection, &name, &namespace));
        opened.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The version of librados that is linked, as (major, minor, extra).
    pub fn library_version() -> (i32, i32, i32) {
        let (mut major, mut minor, mut extra) = (0, 0, 0);
        // SAFETY: the three integers are written.
        unsafe { sys::rados_version(&mut major, &mut minor, &mut extra) };
        (major, minor, extra)
    }
}

/// Whole seconds, as the oldest of these options wants them; 0 would be for ever.
fn seconds(span: Duration) -> String {
    span.as_secs_f64().ceil().max(1.0).to_string()
}

/// Configures a connection that is not made yet.
fn configure(connection: &Connection, options: &ClusterOptions) -> Result<(), ObjectError> {
    let conf = options.conf.as_ref().map(|path| path.display().to_string());
    let path = conf.as_deref().map(|path| c_string(path, path)).transpose()?;
    let path_start = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
    // SAFETY: the path is null, for where Ceph looks, or outlives the call.
    let returned = unsafe { sys::rados_conf_read_file(connection.handle(), path_start) };
    check("configuration", returned).map_err(|error| {
        let reason = match error {
            ObjectError::NotFound { .. } => "the configuration is absent; name its file",
            ObjectError::NotPermitted { .. } => "the configuration is not readable",
            _ => "this is no configuration of Ceph, or a line of it does not end",
        };
        let object = conf.as_deref().unwrap_or("ceph.conf").to_owned();
        ObjectError::Invalid { object, reason: reason.to_owned() }
    })?;
    if let Some(keyring) = &options.keyring {
        set(connection, "keyring", &keyring.display().to_string())?;
    }
    let connect = seconds(options.connect_timeout);
    set(connection, "client_mount_timeout", &connect)?;
    set(connection, "rados_mon_op_timeout", &connect)?;
    set(connection, "rados_osd_op_timeout", &seconds(options.request_timeout))
}

fn set(connection: &Connection, option: &str, value: &str) -> Result<(), ObjectError> {
    let (key, text): (CString, CString) = (c_string(option, option)?, c_string(option, value)?);
    // SAFETY: both strings outlive the call, which copies them.
    let returned = unsafe { sys::rados_conf_set(connection.handle(), key.as_ptr(), text.as_ptr()) };
    check(option, returned).map(drop)
}
