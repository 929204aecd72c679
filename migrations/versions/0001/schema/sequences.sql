-- The fencing token. CACHE 1: a session that kept values back could grant 2
-- before another session grants 1.
create sequence sokka.token_seq as bigint cache 1;

-- A task's place in the queue, drawn anew each time it becomes ready, so that
-- the ready index only grows at its right end.
create sequence sokka.queue_pos_seq as bigint cache 1;

-- The time of the installation's last sweep on behalf of a short reserve, in
-- milliseconds since 1970. A sequence is written in place: a table row updated
-- twice a second would grow a chain of dead versions under a held snapshot.
create sequence sokka.swept_at_seq as bigint cache 1;

-- A hash of the server's identity when a token was last drawn. While it is the same
-- the tokens can be trusted; see functions/core/tokens.sql. A sequence, so that
-- noting it holds nobody up until a transaction ends.
create sequence sokka.incarnation_seq as bigint minvalue -9223372036854775808 cache 1;
