"""The fields of the parts: few on a client part, earlier names refused with the present ones."""

import copy
import inspect

import jax
import pytest
from small_parts import mlp

import fedjax_het as fh
from fedjax_het.errors import SettingError
from fedjax_het.parts import Needs, Studies

CLIENT, MIXING, SERVER = fh.fedavg(mlp()), fh.mixing.uniform(), fh.server.sgd()
TRAINING = CLIENT.training


def test_a_client_part_has_few_fields_of_its_own():
  assert len(fh.ClientUpdate._fields) <= 12
  assert not {*Studies._fields, *Needs._fields} & {*fh.ClientUpdate._fields}


@pytest.mark.parametrize(
  "part, name, wanted",
  [
    (CLIENT, "share", "ClientUpdate's share = 3: is an earlier name. Write init_broadcast=..."),
    (CLIENT, "globalize", "Write global_model=..."),
    (TRAINING, "walk", "LocalTraining's walk = 3: is an earlier name. Write run_steps=..."),
    *((CLIENT, name, f"Write studies=Studies({name}=...)") for name in Studies._fields),
    *((CLIENT, name, f"Write needs=Needs({name}=...)") for name in Needs._fields),
    *((part, "check_rounds", "Write needs=Needs(check_rounds=...)") for part in (MIXING, SERVER)),
    (MIXING, "check_cohort", "Mixing's check_cohort = 3: is an earlier name. Write needs=Needs("),
    (SERVER, "check_examples", "ServerUpdate's check_examples = 3"),
    (SERVER, "beside", "ServerUpdate's beside = 3: is an earlier name. Write adapt_to=..."),
  ],
)
def test_an_earlier_keyword_is_refused_with_the_present_one(part, name, wanted):
  for call in (type(part), part._replace):
    with pytest.raises(SettingError) as error:
      call(**{name: 3})
    assert wanted in str(error.value)
  with pytest.raises(AttributeError, match=f"no attribute '{name}'; its value is ."):
    getattr(part, name)


@pytest.mark.parametrize("part", [CLIENT, MIXING, SERVER])
def test_a_part_is_a_named_tuple_as_before(part):
  assert [*inspect.signature(type(part)).parameters] == [*part._fields]
  with pytest.raises(TypeError, match="unheard_of"):
    type(part)(unheard_of=1)
  with pytest.raises(AttributeError, match=r"has no attribute 'unheard_of'$"):
    part.unheard_of  # noqa: B018
  assert copy.copy(part) == part and type(part)._make(part) == part and not hasattr(part, "__jax_array__")
  assert part._replace(name="mine").name == "mine"


@pytest.mark.parametrize(
  "parts, words",
  [
    ((CLIENT._replace(needs=print), MIXING), "client's needs = .*not a Needs. Write needs=fh.Needs"),
    ((CLIENT._replace(studies={}), MIXING), "client's studies = {}: is not a Studies"),
    ((CLIENT, MIXING._replace(needs=None)), "mixing's needs = None"),
    ((CLIENT, MIXING._replace(needs=Needs(sees_data=("init",)))), "mixing's needs = 'sees_data': has no"),
    ((CLIENT, MIXING, SERVER._replace(needs=Needs(uploads_model=False))), "server's needs = 'uploads_model'"),
    ((CLIENT, MIXING, SERVER._replace(needs=Needs(covers=("params",), withstands=len, probability=True))),
     "server's needs = 'covers, withstands, probability': has no effect in a part of server"),
    ((CLIENT._replace(needs=Needs(withstands=len)), MIXING), "client's needs = 'withstands'"),
  ],
)  # fmt: skip
def test_needs_and_studies_of_another_type_or_without_effect_are_refused(parts, words):
  with pytest.raises(SettingError, match=words):
    fh.federated(*parts)


def test_every_part_s_needs_are_asked(ragged):
  """A mixing or a server part may refuse rounds, cohorts, clients and examples too."""

  def refuse(*_):
    raise SettingError("mine", 1, "refuses these", "Use others.")

  run = dict(rounds=1, cohort_size=2, key=jax.random.key(0))
  for name in ("check_rounds", "check_cohort", "check_examples"):
    for parts in ((CLIENT, MIXING._replace(needs=Needs(**{name: refuse}))),
                  (CLIENT, MIXING, SERVER._replace(needs=Needs(**{name: refuse})))):  # fmt: skip
      with pytest.raises(SettingError, match="mine = 1: refuses these"):
        fh.run(fh.federated(*parts), ragged, **run)
  odd = SERVER._replace(needs=Needs(num_clients=3))
  with pytest.raises(SettingError, match="num_clients = 12: the server part was made for 3 clients"):
    fh.run(fh.federated(CLIENT, MIXING, odd), ragged, **run)
