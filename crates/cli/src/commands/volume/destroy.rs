//! `thalweg volume destroy`: destroys a chained volume.

use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_env::Env;
use thalweg_store::pool::{self, manifest};

use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::places::SERVER_FILES;
use crate::target::Target;

/// Destroy a volume and everything on it
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
    if Path::new(&args.volume).exists() && !Path::new(&args.volume).is_dir() {
        Target::volume(&args.volume)?.chained()?;
    }
    destroy(env, Path::new(&args.volume)).await
}
/// Destroys the volume in `folder`, and removes the files that this program made there.
async fn destroy(env: &Env, folder: &Path) -> Outcome<()> {
    let folder = std::path::absolute(folder)?;
    if Client::connect(&folder).await?.is_some() {
        return Err(Failure::new(format!("{} is being served or attached", folder.display()))
            .help("detach it, or end its server, then destroy it"));
    }
    let files = own_files(&folder);
    pool::destroy(env, &folder).await?;
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
