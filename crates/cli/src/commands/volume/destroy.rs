//! `thalweg volume destroy`: destroys a chained volume.

use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_env::Env;
use thalweg_store::device::kinds::kind_of;
use thalweg_store::pool::{NamedMedia, destroy_on, manifest};

use crate::control::Client;
use crate::devices;
use crate::failure::{Failure, Outcome};
use crate::places::SERVER_FILES;
use crate::target::Target;

/// Destroy a volume and everything on it
///
/// Files outside of its folder and images in a pool of a Ceph cluster stay, emptied: thalweg image destroy removes one.
#[derive(Debug, Args)]
pub(crate) struct Destroy {
    /// The volume's folder
    volume: String,
    /// Confirm that everything on it is to be lost
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(env: &Env, args: &Destroy) -> Outcome<()> {
    if !args.yes {
        return Err(Failure::new(format!("this destroys {} and everything on it", args.volume))
            .help("to confirm, add --yes"));
    }
    let place = Path::new(&args.volume);
    if kind_of(place).is_some() {
        return Err(Target::volume(&args.volume)?
            .refused()
            .help(format!("thalweg image destroy {} --yes", args.volume)));
    }
    if place.exists() && !place.is_dir() {
        Target::volume(&args.volume)?.chained()?;
    }
    destroy(env, place).await
}

/// Destroys the volume in `folder`, and removes the files that this program made there.
async fn destroy(env: &Env, folder: &Path) -> Outcome<()> {
    let folder = std::path::absolute(folder)?;
    if Client::connect(&folder).await?.is_some() {
        return Err(Failure::new(format!("{} is being served or attached", folder.display()))
            .help("detach it, or end its server, then destroy it"));
    }
    let files = own_files(&folder);
    let kinds = devices::known(env);
    let destroyed = destroy_on(env, &NamedMedia(kinds.clone()), &folder).await;
    devices::close(&kinds, destroyed.map_err(Failure::from)).await?;
    for file in files {
        if let Err(error) = std::fs::remove_file(&file) {
            tracing::warn!(%error, file = %file.display(), "a file could not be removed");
        }
    }
    // The folder stays if it holds other files.
    let _ = std::fs::remove_dir(&folder);
    Ok(())
}

/// The volume's regular files in its folder: these were made for it. Files elsewhere belong to the user.
fn own_files(folder: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(folder.join(manifest::FILE)).unwrap_or_default();
    let paths: Vec<_> = match toml::from_str::<manifest::Manifest>(&text) {
        Ok(manifest) => {
            let places = manifest.devices.into_iter().chain(manifest.leftovers);
            places.map(|place| place.path).collect()
        }
        Err(_) => Vec::new(),
    };
    let inside = paths.into_iter().filter(|path| path.components().count() == 1);
    let named = SERVER_FILES.map(PathBuf::from);
    let mut files: Vec<_> = inside.chain(named).map(|path| folder.join(path)).collect();
    files.sort();
    files.dedup();
    files.retain(|file| std::fs::symlink_metadata(file).is_ok_and(|found| !found.is_dir()));
    files
}
