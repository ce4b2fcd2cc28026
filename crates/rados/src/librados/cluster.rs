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

impl ClusterOptions {
    /// The defaults, and what the variable `CEPH_ARGS` says of the client's name and of the configuration file, as
    /// Ceph's own programs read it. librados itself reads its other options, and `CEPH_CONF` and `CEPH_KEYRING`.
    pub fn of_environment() -> ClusterOptions {
        let words = std::env::var("CEPH_ARGS").unwrap_or_default();
        ClusterOptions::of_words(&words.split_whitespace().collect::<Vec<_>>())
    }

    fn of_words(words: &[&str]) -> ClusterOptions {
        let mut options = ClusterOptions::default();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (*word, None),
            };
            let mut value = || value.or_else(|| rest.next().copied()).unwrap_or_default();
            match option {
                "--id" | "--user" | "-i" => options.id = value().to_owned(),
                "--name" | "-n" => {
                    let name = value();
                    options.id = name.strip_prefix("client.").unwrap_or(name).to_owned();
                }
                "--conf" | "-c" => options.conf = Some(value().into()),
                _ => {}
            }
        }
        options
    }
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
    let read = check("configuration", returned).map_err(|error| {
        let reason = match error {
            ObjectError::NotFound { .. } => {
                "the configuration is absent; name its file in the variable CEPH_CONF"
            }
            ObjectError::NotPermitted { .. } => "the configuration is not readable",
            _ => "this is no configuration of Ceph, or a line of it does not end",
        };
        let object = conf.as_deref().unwrap_or("ceph.conf").to_owned();
        ObjectError::Invalid { object, reason: reason.to_owned() }
    });
    let connect = seconds(options.connect_timeout);
    set(connection, "client_mount_timeout", &connect)?;
    set(connection, "rados_mon_op_timeout", &connect)?;
    set(connection, "rados_osd_op_timeout", &seconds(options.request_timeout))?;
    // SAFETY: a null pointer stands for `CEPH_ARGS`.
    let returned = unsafe { sys::rados_conf_parse_env(connection.handle(), ptr::null()) };
    check("CEPH_ARGS", returned)?;
    // Without a file, the environment may say where the monitors are.
    if !has_monitors(connection) {
        read?;
    }
    match &options.keyring {
        Some(keyring) => set(connection, "keyring", &keyring.display().to_string()),
        None => Ok(()),
    }
}

/// Whether the configuration says where the monitors are.
fn has_monitors(connection: &Connection) -> bool {
    let mut text = [0_u8; 2];
    // SAFETY: at most the given length of the buffer is written. A longer value is an error that says so.
    let returned = unsafe {
        let start = text.as_mut_ptr().cast();
        sys::rados_conf_get(connection.handle(), c"mon_host".as_ptr(), start, text.len())
    };
    returned < 0 || text[0] != 0
}

fn set(connection: &Connection, option: &str, value: &str) -> Result<(), ObjectError> {
    let (key, text): (CString, CString) = (c_string(option, option)?, c_string(option, value)?);
    // SAFETY: both strings outlive the call, which copies them.
    let returned = unsafe { sys::rados_conf_set(connection.handle(), key.as_ptr(), text.as_ptr()) };
    check(option, returned).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_ceph_name_the_client() {
        let of = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let ClusterOptions { id, conf, .. } = ClusterOptions::of_words(&words);
            (id, conf)
        };
        let client = |id: &str| (id.to_owned(), None);
        assert_eq!(of(""), client("admin"));
        assert_eq!(of("--id one"), client("one"));
        assert_eq!(of("--mon-host 127.0.0.1 --id=one --keyring k"), client("one"));
        assert_eq!(of("-n client.two"), client("two"));
        assert_eq!(of("--name=client.two -c file"), ("two".to_owned(), Some("file".into())));
    }
}
