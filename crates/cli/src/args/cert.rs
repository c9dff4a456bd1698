//! Arguments of `stele cert`.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use stele_tls::{ClientName, ClusterName, Days, IdentityError, NodeName};

const EXAMPLE: &str = "\
Example:
  stele cert ca --dir certs
  stele cert node n1 --host db1.example.com,10.0.0.1 --dir certs
  stele cert client app-1 --dir certs

A node needs ca.pem, its own certificate and its own key. Only `stele cert` needs ca.key.
To replace an authority, create another one in another directory and give all nodes and clients
both certificates in one file, for example with `cat old/ca.pem new/ca.pem`. Then replace the
certificates of the nodes and clients, and at last the file.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Cert {
    /// Directory of ca.pem and ca.key, to which the files are written
    #[arg(long, global = true, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: CertCommand,
}

/// Commands of `stele cert`. Keys are ECDSA P-256, and no file is ever overwritten.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Create an authority: ca.pem and ca.key; creates the directory
    Ca {
        /// Name of the authority; a random suffix is added
        #[arg(long, default_value = "Stele CA")]
        name: String,
        /// Days of validity
        #[arg(long, value_name = "N", default_value = "3650", value_parser = days)]
        days: Days,
    },
    /// Create the certificate of a node: NAME.pem and NAME.key
    Node {
        /// Name of the node; it is also one of its hosts if it has the form of a host name or an address
        #[arg(value_parser = node)]
        name: NodeName,
        /// Host names and IP addresses under which clients connect to the node, without ports
        #[arg(long, value_name = "HOST", value_delimiter = ',')]
        host: Vec<String>,
        /// Name of the cluster; nodes accept only nodes of the same name
        #[arg(long, value_name = "NAME", default_value = "stele", value_parser = cluster)]
        cluster_name: ClusterName,
        /// Days of validity; it ends with the authority's at the latest
        #[arg(long, value_name = "N", default_value = "365", value_parser = days)]
        days: Days,
    },
    /// Create the certificate of a client: NAME.pem and NAME.key
    Client {
        /// Name of the client
        #[arg(value_parser = client)]
        name: ClientName,
        /// Days of validity; it ends with the authority's at the latest
        #[arg(long, value_name = "N", default_value = "365", value_parser = days)]
        days: Days,
    },
}

fn days(text: &str) -> Result<Days, String> {
    let days = text.parse().ok().and_then(Days::new);
    days.ok_or_else(|| format!("`{text}` is not a number of days from 1 to {}", Days::MAX))
}

fn node(text: &str) -> Result<NodeName, IdentityError> {
    NodeName::new(text)
}

fn cluster(text: &str) -> Result<ClusterName, IdentityError> {
    ClusterName::new(text)
}

fn client(text: &str) -> Result<ClientName, IdentityError> {
    ClientName::new(text)
}
