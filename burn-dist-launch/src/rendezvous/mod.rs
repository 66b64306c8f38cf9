//! Where processes meet before they have a transport: a small key-value store over TCP, with barriers, that notices who
//! vanishes.
//!
//! A [`Server`] runs in one process (that of rank 0, or the launcher) and every process, rank 0 included, connects a
//! [`Client`]. Keys are set once, and waited for. Launchers may come too ([`Member::launcher`]): a failure that one of
//! them sees reaches all others, with its text and exit code.
//!
//! **Who may come in.** Both sides hold a [`Token`]. The server greets with a nonce; the client answers with who it is,
//! a nonce, a key drawn for this connection and an HMAC-SHA256 over all of it; and the server with a key of its own and
//! what only one with the token can seal. The token never travels, neither side can be replayed, and a client does not
//! take its keys from an impostor. HMACs are compared in constant time (`hmac`'s `verify_slice`).
//!
//! **Who may listen.** All that follows is sealed under what both drew (`secure`). Whoever can read the connection
//! learns when messages come and how long they are, and from the hello rank, host and pid of the process; whoever
//! changes it ends it. The token of a program is a secret of its time: who learns it later cannot read what was sent.
//!
//! **What is bounded.** Messages ([`FRAME_BYTES_MAX`], 1 KiB from strangers), connections (the world, and
//! [`STRANGERS_MAX`] that have not yet named themselves, for [`Options::stranger_patience`] each, five seconds in all),
//! keys, bytes of all values, open requests.
//!
//! **Who is missing.** A rank that is there twice, or that believes in another size of the world or runs another
//! version of this crate, is refused with the reason, and while the processes are still gathering everyone else ends
//! with the same reason. A stranger without the token ends nobody; whoever waits in vain learns of it. A connection
//! that ends without a goodbye, or that is silent for [`SILENCE_SECONDS`] or else [`Options::silence`], is a loss:
//! every other process learns who it was ([`Client::lost`]).
//!
//! | file | idea |
//! | --- | --- |
//! | `message` | messages as bytes |
//! | `token` | the secret, and proofs of knowing it |
//! | `secure` | connections that only those with the token can read, write or change |
//! | `primitives` | what they are made with |
//! | `state` | who is there, keys and barriers: what each message changes, without sockets |
//! | `server` | connections |
//! | `client` | one process, or one launcher |
//! | `limits`, `silence` | how long each may be silent: bounds, and what is set |
//! | `trouble` | who has vanished, and who has failed |
//! | `until` | a time for all of a conversation |
//! | `error` | what can go wrong |

mod client;
mod error;
mod limits;
mod message;
mod primitives;
mod secure;
mod server;
mod silence;
mod state;
#[cfg(test)]
mod tests;
mod token;
mod trouble;
mod until;

pub use client::Client;
pub use error::RendezvousError;
pub use limits::SILENCE_SECONDS;
pub use message::{FRAME_BYTES_MAX, Member, Role};
pub(crate) use secure::{Calling, HANDSHAKE_BYTES, Keys, Open, Seal, answer};
pub use server::{Options, STRANGERS_MAX, Server};
pub use silence::silence;
pub use state::{KEY_BYTES_MAX, KEYS_MAX, STORED_BYTES_MAX};
pub(crate) use token::{NONCE_BYTES, random};
pub use token::{TOKEN, Token, TokenError};
pub use trouble::{Failure, Lost};
pub(crate) use until::Until;
