//! The beginning and the end of a mount, as its requests see them.

use std::io;
use std::time::Duration;

use fuser::{InitFlags, KernelConfig, ReplyStatfs, Request};
use thalweg_env::Env;
use thalweg_fs::Filesystem;

use super::adapter::Adapter;

/// The longest request; the kernel's own default limit is 256 pages.
const MAX_REQUEST: u32 = 1 << 20;
/// Requests that the kernel keeps in flight beside those that a program waits for.
const MAX_BACKGROUND: u16 = 256;

/// How long umount(8) waits for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(8);

impl Adapter {
    /// Agrees with the kernel on limits and capabilities.
    pub(super) fn negotiate(&self, config: &mut KernelConfig) -> io::Result<()> {
        // A kernel that grants less works too, only slower.
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_readahead(MAX_REQUEST);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        // Without these, the kernel would not apply the filesystem's permissions.
        let mut needed = InitFlags::FUSE_DONT_MASK;
        // The second one has the kernel check them.
        needed.set(InitFlags::FUSE_POSIX_ACL, !self.served().checks_users);
        needed.set(InitFlags::FUSE_POSIX_LOCKS, self.locks.has_posix());
        needed.set(InitFlags::FUSE_FLOCK_LOCKS, self.locks.has_bsd());
        config.add_capabilities(needed).map_err(|missing| {
            io::Error::new(io::ErrorKind::Unsupported, format!("the kernel lacks {missing:?}"))
        })?;
        let mut wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_HAS_IOCTL_DIR
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if self.writeback_cache {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        for flag in wanted.iter() {
            if config.add_capabilities(flag).is_err() {
                tracing::info!(?flag, "the kernel does not do this");
            }
        }
        Ok(())
    }

    /// Answers how full the filesystem is. umount(8) asks for it before it unmounts: then everything is made
    /// durable first.
    pub(super) fn show_capacity(&self, request: &Request, reply: ReplyStatfs) {
        let leaves = is_umount(request.pid()) && !self.served.filesystem.is_read_only();
        let env = self.env.clone();
        self.by(request).run(
            "statfs",
            reply,
            move |served| async move {
                if leaves {
                    sync_before_unmount(&env, &*served.filesystem).await;
                }
                served.statistics(&env).await
            },
            |reply, it| {
                let (used, most) = it.inodes;
                let free = most.saturating_sub(used);
                reply.statfs(
                    it.blocks,
                    it.free,
                    it.free,
                    most,
                    free,
                    it.block,
                    thalweg_fs::filesystem::MAX_NAME as u32,
                    it.block,
                );
            },
        );
    }
}

/// Makes everything durable. An unmount does not wait long for a server that is away.
async fn sync_before_unmount(env: &Env, filesystem: &dyn Filesystem) {
    let syncing = filesystem.sync_all();
    let synced = match filesystem.is_remote() {
        true => env.timeout(PATIENCE, syncing).await,
        false => Some(syncing.await),
    };
    match synced {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::error!(%error, "writes before the unmount are not durable"),
        None => tracing::error!(
            "the server does not answer; writes before the unmount may not be durable"
        ),
    }
}

/// Whether a process is umount(8).
fn is_umount(process: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
    name.is_ok_and(|name| name.trim_end() == "umount")
}
