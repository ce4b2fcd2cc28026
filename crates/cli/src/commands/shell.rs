//! `thalweg completions` and `thalweg man`: completion scripts and manual pages.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::{Failure, Outcome};
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write the manual pages into a directory
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory, made when missing
    directory: PathBuf,
}

pub(crate) fn completions(args: &Completions, mut command: Command) -> Outcome<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "thalweg", &mut script);
    output::bytes(&script);
    Ok(())
}

pub(crate) fn man(args: &Man, command: Command) -> Outcome<()> {
    write_pages(&args.directory, command).map_err(|error| {
        Failure::of(&error).while_doing(format!("cannot write to {}", args.directory.display()))
    })
}

fn write_pages(directory: &Path, command: Command) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}
