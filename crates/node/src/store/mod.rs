//! One store: the turn of its loop, its admission, its maintenance and its reads.
