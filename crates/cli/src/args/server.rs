//! Arguments of `stele server`: every setting of the table is a flag.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;
use stele_server::config::SETTINGS;

/// Arguments of `stele server`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Server {
    /// TOML file of settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
    /// Directory of a replaced disk: an empty one becomes a new store; needed once
    #[arg(long, value_name = "DIR")]
    pub replaced_disk: Vec<PathBuf>,
    /// Directory that was moved or restored, and of which no copy is started; needed once
    #[arg(long, value_name = "DIR")]
    pub moved_directory: Vec<PathBuf>,
    /// Exit when the parent process with this ID ends
    #[arg(long, value_name = "PID", hide = true)]
    pub with_parent: Option<u32>,
    /// File with the factor by which the devices are slower, read all the time; for the playground
    #[arg(long, value_name = "FILE", hide = true, requires = "with_parent")]
    pub device_scale: Option<PathBuf>,
}

/// Settings given as flags: name and text, as [`stele_server::config::Config::load`] takes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(pub Vec<(String, String)>);

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in &SETTINGS {
            if matches.value_source(setting.key) != Some(ValueSource::CommandLine) {
                continue;
            }
            let texts: Vec<&str> = matches
                .get_many::<String>(setting.key)
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect();
            self.0.push((setting.key.to_owned(), texts.join(",")));
        }
        Ok(())
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().fold(command, |command, setting| {
            let is_list = ["store", "join", "label"].contains(&setting.key);
            let name = match setting.key {
                "store" => "DIR",
                "label" => "NAME=VALUE",
                "listen" | "advertise" | "join" => "ADDR",
                _ if setting.unit.is_empty() => "WORD",
                _ => "N",
            };
            let unit = match setting.unit {
                "" => String::new(),
                unit => format!(" [{unit}]"),
            };
            let flag = Arg::new(setting.key)
                .long(setting.key.replace('_', "-"))
                .value_name(name)
                .help(format!("{}{unit}", setting.meaning))
                .action(if is_list { ArgAction::Append } else { ArgAction::Set });
            command.arg(flag)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
