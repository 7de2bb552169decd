--
-- Keys: what stands for one, and what makes one.
--
-- All three are pure functions of their arguments whose formats are fixed for
-- ever: src/digest.c, src/key.c and src/fingerprint.c describe them.
--

-- The unique index of every leaf is on this.
CREATE FUNCTION idemq.digest(scope text, key text)
RETURNS uuid
AS 'MODULE_PATHNAME', 'idemq_digest'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

REVOKE ALL ON FUNCTION idemq.digest(text, text) FROM PUBLIC;

COMMENT ON FUNCTION idemq.digest(text, text) IS
'128 bits that stand for a key within a scope: a cryptographic hash, which begins with the time of a key that is a UUID of version 7 or a ULID; texts of any length, told apart byte by byte';

CREATE FUNCTION @extschema@.idem_key(VARIADIC parts text[])
RETURNS text
AS 'MODULE_PATHNAME', 'idem_key'
LANGUAGE C IMMUTABLE PARALLEL SAFE;

REVOKE ALL ON FUNCTION @extschema@.idem_key(text[]) FROM PUBLIC;

COMMENT ON FUNCTION @extschema@.idem_key(text[]) IS
'unambiguous composite key: the parts (at least one, none of them null) with '':'' between them; within a part '':'' is written as ''\:'' and ''\'' as ''\\''; this format never changes';

CREATE FUNCTION @extschema@.idem_fingerprint(payload jsonb, VARIADIC paths text[] DEFAULT '{}')
RETURNS text
AS 'MODULE_PATHNAME', 'idem_fingerprint'
LANGUAGE C IMMUTABLE PARALLEL SAFE;

REVOKE ALL ON FUNCTION @extschema@.idem_fingerprint(jsonb, text[]) FROM PUBLIC;

COMMENT ON FUNCTION @extschema@.idem_fingerprint(jsonb, text[]) IS
'SHA-256 in hex of a payload, the same for equal jsonb values; with paths (''a.b.0'': names and array indexes from the outermost, a dot in a name is written as ''\.'', a backslash as ''\\'') only of these paths and what is found under them, in their order, where absent differs from null; the format never changes';
