/*
 * The claim family.
 *
 * VOLATILE and PARALLEL UNSAFE, all of them: the answer is about now, not about
 * the statement's snapshot.  Not STRICT: a NULL key is an error, never NULL.
 */

CREATE FUNCTION @extschema@.idem_claim(key text, scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_claim'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_claim(text, text) IS
'claims a message in this transaction: true if it is to be processed now, false if it has been; waits for another transaction that is deciding about it';

CREATE FUNCTION @extschema@.idem_try_claim(key text, scope text DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_try_claim'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_try_claim(text, text) IS
'claims a message without waiting for other transactions: claimed, duplicate, mine or busy';

CREATE FUNCTION @extschema@.idem_claim_many(keys text[], scope text DEFAULT NULL)
RETURNS boolean[]
AS 'MODULE_PATHNAME', 'idem_claim_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_claim_many(text[], text) IS
'claims a batch of messages, answers in the order of the array; a message that is in it twice is true once';

CREATE FUNCTION @extschema@.idem_seen(key text, scope text DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idem_seen'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_seen(text, text) IS
'when a message was claimed, NULL if it was not; writes nothing, works on a standby';

CREATE FUNCTION @extschema@.idem_forget(key text, scope text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_forget'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION @extschema@.idem_forget(text, text) IS
'gives a message back, when this transaction commits: it can be claimed again; true if it was claimed';

REVOKE ALL ON FUNCTION
	@extschema@.idem_claim(text, text),
	@extschema@.idem_try_claim(text, text),
	@extschema@.idem_claim_many(text[], text),
	@extschema@.idem_seen(text, text),
	@extschema@.idem_forget(text, text)
FROM PUBLIC;
