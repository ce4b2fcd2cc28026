//! `thalweg volume`: make, look at, change and destroy volumes.

pub(crate) mod assemble;
pub(crate) mod change;
pub(crate) mod create;
pub(crate) mod destroy;
pub(crate) mod in_place;
pub(crate) mod rebuild_index;
pub(crate) mod scrub;
pub(crate) mod settings;
pub(crate) mod snapshot;

use clap::Subcommand;
use thalweg_env::Env;

use self::assemble::Assemble;
use self::change::{Extend, Rebuild, Replace, Set, Shrink};
use self::create::Create;
use self::destroy::Destroy;
use self::in_place::CreateInPlace;
use self::rebuild_index::RebuildIndex;
use self::scrub::Scrub;
use self::snapshot::Snapshot;
use super::status::{self, Status};
use crate::failure::Outcome;

/// Make, look at, change and destroy volumes
///
/// A volume is a folder that lists its files and devices. If it is served or attached, its server carries out
/// the command.
#[derive(Debug, Subcommand)]
pub(crate) enum Volume {
    Create(Create),
    CreateInPlace(CreateInPlace),
    Status(Status),
    Assemble(Assemble),
    Extend(Extend),
    Shrink(Shrink),
    Replace(Replace),
    Rebuild(Rebuild),
    Set(Set),
    RebuildIndex(RebuildIndex),
    Scrub(Scrub),
    #[command(subcommand)]
    Snapshot(Snapshot),
    Destroy(Destroy),
}

/// Carries out a command; its exit code.
pub(crate) async fn run(env: &Env, command: Volume) -> Outcome<u8> {
    match command {
        Volume::Scrub(args) => return scrub::run(env, &args).await,
        Volume::Status(args) => return status::run(env, args).await,
        Volume::Create(args) => create::run(env, args).await,
        Volume::CreateInPlace(args) => in_place::run(env, args).await,
        Volume::Assemble(args) => assemble::run(env, &args).await,
        Volume::Extend(args) => change::extend(env, args).await,
        Volume::Shrink(args) => change::shrink(env, args).await,
        Volume::Replace(args) => change::replace(env, args).await,
        Volume::Rebuild(args) => change::rebuild(env, args).await,
        Volume::Set(args) => change::set(env, args).await,
        Volume::RebuildIndex(args) => rebuild_index::run(env, &args).await,
        Volume::Snapshot(command) => snapshot::run(env, command).await,
        Volume::Destroy(args) => destroy::run(env, &args).await,
    }
    .map(|()| 0)
}
