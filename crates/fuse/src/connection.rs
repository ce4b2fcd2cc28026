//! Connections to the kernel: a descriptor of `/dev/fuse`, and the mount that it serves.
//!
//! This process mounts and unmounts by its own calls. The FUSE library would unmount by path when its session is dropped, also
//! after the kernel has released the filesystem, and whatever is mounted there by then.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use fuser::{Config, Filesystem, Session, SessionACL};

use crate::mounts::{self, Mount};

/// The device of the kernel's FUSE.
const DEVICE: &str = "/dev/fuse";
/// The program that mounts for users without privileges, of the package fuse3.
const FUSERMOUNT: &str = "fusermount3";

/// Options of a mount, for the kernel.
#[derive(Clone, Debug)]
pub(crate) struct KernelOptions {
    /// The source, as the mount table shows it.
    pub(crate) source: String,
    /// What the mount table shows behind `fuse.`.
    pub(crate) subtype: Option<&'static str>,
    /// Flags of mount(2).
    pub(crate) flags: libc::c_ulong,
    /// All users may use the mount.
    pub(crate) allow_other: bool,
    /// The kernel checks what users may do.
    pub(crate) checks_permissions: bool,
}

impl KernelOptions {
    /// The source without the characters that end an option.
    fn source(&self) -> String {
        self.source.replace([',', '\0'], "_")
    }

    /// The options that mount(2) takes as text, for this descriptor and this mode of the directory.
    fn data(&self, device: &File, mode: u32) -> String {
        // SAFETY: the calls only read the process's identity and cannot fail.
        let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
        let fd = device.as_raw_fd();
        let mut data = format!("fd={fd},rootmode={mode:o},user_id={user},group_id={group}");
        for word in self.words() {
            data.push(',');
            data.push_str(&word);
        }
        data
    }

    /// The options that mount(2) and fusermount3 know by the same words.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        words.extend(self.checks_permissions.then(|| "default_permissions".to_owned()));
        words.extend(self.subtype.map(|subtype| format!("subtype={subtype}")));
        words.extend(self.allow_other.then(|| "allow_other".to_owned()));
        words
    }

    /// The options for fusermount3, which mounts with `nosuid` and `nodev` in any case.
    fn for_fusermount(&self) -> String {
        let mut words = self.words();
        // A backslash begins an escape there.
        words.push(format!("fsname={}", self.source().replace('\\', "\\\\")));
        let is_set = |flag| self.flags & flag != 0;
        words.push(if is_set(libc::MS_RDONLY) { "ro" } else { "rw" }.to_owned());
        for (flag, word) in [
            (libc::MS_NOEXEC, "noexec"),
            (libc::MS_SYNCHRONOUS, "sync"),
            (libc::MS_DIRSYNC, "dirsync"),
            (libc::MS_NOATIME, "noatime"),
        ] {
            words.extend(is_set(flag).then(|| word.to_owned()));
        }
        words.join(",")
    }
}

/// A connection to the kernel. Dropping it unmounts nothing.
#[derive(Debug)]
pub(crate) struct Connection {
    device: OwnedFd,
    mount: Mount,
}

impl Connection {
    /// Mounts on a directory and begins a session there, with as many threads. It blocks until the kernel has sent its first
    /// request.
    ///
    /// # Errors
    /// The system's error; nothing is left behind.
    pub(crate) fn mount<F: Filesystem>(
        filesystem: F,
        mountpoint: &Path,
        options: &KernelOptions,
        threads: usize,
    ) -> io::Result<(Session<F>, Connection)> {
        let device = attach(mountpoint, options)?;
        let connection = Connection { mount: find(mountpoint, options)?, device };
        let mut config = Config::default();
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(threads.max(1));
        config.clone_fd = threads > 1;
        let serving = connection.device.try_clone()?;
        match Session::from_fd(filesystem, serving, config.acl, config) {
            Ok(session) => Ok((session, connection)),
            Err(error) => {
                let _ = connection.unmount(libc::MNT_DETACH);
                Err(error)
            }
        }
    }

    /// The mount, as it was when it was made.
    pub(crate) fn mounted(&self) -> &Mount {
        &self.mount
    }

    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Whether the kernel has released the filesystem, or has cut it off. From then on its device number may be another one's.
    pub(crate) fn has_ended(&self) -> bool {
        let mut polled = libc::pollfd { fd: self.device.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: the descriptor is open, and the call writes to this one structure alone.
        let ready = unsafe { libc::poll(&raw mut polled, 1, 0) };
        ready > 0 && polled.revents & libc::POLLERR != 0
    }

    /// Unmounts the mount itself, and no other one.
    ///
    /// # Errors
    /// Those of [`mounts::unmount`].
    pub(crate) fn unmount(&self, flags: libc::c_int) -> io::Result<()> {
        mounts::unmount(&self.mount, flags)
    }
}

/// Our mount in the table, which may be covered by another one already.
fn find(mountpoint: &Path, options: &KernelOptions) -> io::Result<Mount> {
    let source = options.source();
    let is_it = |it: &Mount| {
        it.mountpoint == mountpoint && it.source == source && it.kind.starts_with("fuse")
    };
    mounts::list()?.into_iter().rfind(is_it).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// Mounts on a directory; the descriptor that serves the mount.
fn attach(mountpoint: &Path, options: &KernelOptions) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    match mount(&device, mountpoint, options) {
        Ok(()) => Ok(device.into()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => fusermount(mountpoint, options),
        Err(error) => Err(error),
    }
}

fn mount(device: &File, mountpoint: &Path, options: &KernelOptions) -> io::Result<()> {
    let mode = std::fs::metadata(mountpoint)?.mode();
    let source = CString::new(options.source())?;
    let target = CString::new(mountpoint.as_os_str().as_bytes())?;
    let data = CString::new(options.data(device, mode))?;
    // SAFETY: all texts are terminated, and alive for the call.
    let done = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            c"fuse".as_ptr(),
            options.flags,
            data.as_ptr().cast(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has fusermount3 mount, for a user without privileges. It opens the device and sends it over a socket, whose number it finds in
/// its environment.
fn fusermount(mountpoint: &Path, options: &KernelOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // The program must inherit this one; the others of this process are closed at its start.
    // SAFETY: the descriptor is open, and the call changes its flags alone.
    if unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-o").arg(options.for_fusermount()).arg("--").arg(mountpoint);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string()).env("LC_ALL", "C");
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    drop(theirs);
    let child = child.map_err(|error| mounts::without_fusermount(&error))?;
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match received {
        Ok(device) if output.status.success() => Ok(device),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(io::Error::new(io::ErrorKind::PermissionDenied, said))
        }
    }
}

/// The descriptor that a process sends over a socket.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Room for the header and one descriptor, aligned as the header.
    let mut control = [0usize; 8];
    // SAFETY: all zeros are a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    loop {
        // SAFETY: the message points to buffers of the sizes that it says, which are alive for the call.
        let read =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if read > 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: the kernel has filled the control buffer; the macros stay within its length.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
            || (*header).cmsg_len < libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize
        {
            return Err(io::Error::other("fusermount3 has sent no descriptor"));
        }
        let number = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
        Ok(OwnedFd::from_raw_fd(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(source: &str, flags: libc::c_ulong) -> KernelOptions {
        let source = source.to_owned();
        let (subtype, checks_permissions) = (Some("thalweg"), true);
        KernelOptions { source, subtype, flags, allow_other: true, checks_permissions }
    }

    #[test]
    fn a_source_is_one_option() {
        let words = options("/srv/a,b\\c", libc::MS_RDONLY | libc::MS_NOATIME).for_fusermount();
        assert_eq!(
            words,
            "default_permissions,subtype=thalweg,allow_other,fsname=/srv/a_b\\\\c,ro,noatime"
        );
        let device = File::open("/dev/null").unwrap();
        let data = options("/srv/a,b", 0).data(&device, 0o40755);
        let begin = format!("fd={},rootmode=40755,user_id=", device.as_raw_fd());
        assert!(data.starts_with(&begin) && !data.contains("/srv"), "{data}");
        assert!(data.ends_with(",default_permissions,subtype=thalweg,allow_other"), "{data}");
    }

    #[test]
    fn a_descriptor_is_received_or_its_absence_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let error = receive_descriptor(&ours).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut theirs, b"x").unwrap();
        assert!(receive_descriptor(&ours).unwrap_err().to_string().contains("no descriptor"));
    }
}
