//! The mount of a filesystem that a server on another machine shares.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_cluster::client::Client;
use thalweg_cluster::client::address::Address;
use thalweg_fuse::files::Locks;
use thalweg_fuse::mounted as fuse;

use super::{Ending, MountedFiles, MountedVolume, Mounts, PublishedName, mount_at};
use crate::failure::Outcome;
use crate::request::MountRequest;

/// Bytes that the kernel reads ahead unless told otherwise: a read costs a round trip or two.
const READ_AHEAD: u32 = 4 << 20;

impl Mounts {
    /// The client of a shared filesystem that is mounted, with its address.
    pub(crate) async fn shared_client(&self) -> Option<(String, Client)> {
        let all = self.list.lock().await;
        all.iter().find_map(|it| match &it.files {
            MountedFiles::Shared(client) => Some((it.volume.clone(), client.clone())),
            MountedFiles::Own(_) => None,
        })
    }

    /// Mounts a filesystem that a server on another machine shares. Requests about the mount come in `folder`.
    pub(crate) async fn mount_shared(
        self: &Arc<Self>,
        client: Client,
        address: &Address,
        request: &MountRequest,
        folder: PathBuf,
    ) -> Outcome<()> {
        let mut all = self.list.lock().await;
        let used = self.lifetime.begin_use();
        let defaults = request.options.for_kernel(address.to_string());
        // Other machines are to see the locks. The writes that the kernel would collect are not bounded by a lease.
        let read_ahead = Some(request.options.read_ahead.unwrap_or(READ_AHEAD));
        let options = fuse::MountOptions {
            locks: Locks::Both,
            writeback_cache: false,
            checks_users: client.checks_for_kernel(),
            read_ahead,
            soft: request.options.away.soft(),
            ..defaults
        };
        let files = MountedFiles::Shared(client);
        let mounted = mount_at(&self.env, files.filesystem(), &request.directory, &options).await;
        let mounted = match mounted {
            Ok(mounted) => Arc::new(mounted),
            Err(failure) => {
                files.close(&self.env, Ending::Whole).await?;
                return Err(failure);
            }
        };
        let published = PublishedName::new(&mounted, folder)?;
        self.watch_mount(address.to_string(), mounted.clone());
        all.push(MountedVolume {
            volume: address.to_string(),
            snapshot: None,
            files,
            mounted,
            options,
            views: Vec::new(),
            ending: Ending::Whole,
            name: Some(published),
            used,
        });
        Ok(())
    }
}
