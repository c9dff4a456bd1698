//! Life of the placement leader: load, propose, tell, stop.
